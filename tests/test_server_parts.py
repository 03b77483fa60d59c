"""Lanes and workers, specifications in a request, diffs."""

import difflib
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.files import read_text
from perfmodel.hardware.catalog import find_gpu, gpu_ids
from perfmodel.server import lane as lanes
from perfmodel.server.diffs import patched
from perfmodel.server.lane import Lane
from perfmodel.server.problem import RefusedError
from perfmodel.server.run import REQUEST_S, Silent
from perfmodel.server.specs import validate_spec, validate_yaml
from perfmodel.server.worker import GoneError, OverTimeError, Worker

H20 = read_text(find_gpu("h20"))


class FakeWorker:
    """Answers with the body; `slow` never ends in time, `deadly` ends the process, `endless` works until it is killed."""

    started = 0

    def __init__(self, nice):
        FakeWorker.started += 1
        self.killed = threading.Event()

    def ask(self, jobs, limit_s):
        for name, _ in jobs:
            if name == "slow":
                raise OverTimeError
            if name == "deadly":
                raise GoneError
            if name == "endless":
                assert self.killed.wait(5)
                raise GoneError
        return [(200, b"%d %s" % (len(jobs), body)) for _, body in jobs], ["a line"]

    def alive(self):
        return not self.killed.is_set()

    def kill(self):
        self.killed.set()


@pytest.fixture
def lane(monkeypatch):
    monkeypatch.setattr(lanes, "Worker", FakeWorker)
    made = []

    def make(**options):
        made.append(Lane(**{"workers": 1, "together": 4, "waiting": 8, "limit_s": 1.0, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


class TestLane:
    def test_what_waits_is_computed_together(self, lane):
        one = lane(workers=0)
        futures = [one.submit("x", b"%d" % number) for number in range(6)]
        assert [len(one._take()), len(one._take())] == [4, 2]
        assert all(future.running() for future in futures)

    def test_large_bodies_are_not_computed_together(self, lane):
        one = lane(workers=0)
        for _ in range(3):
            one.submit("x", b" " * 8000)
        assert [len(one._take()), len(one._take())] == [2, 1]

    @pytest.mark.parametrize(("name", "status"), [("slow", 504), ("deadly", 503)])
    def test_one_that_ends_the_process_takes_no_other_with_it(self, lane, name, status):
        one, log = lane(workers=0, log=lambda line: log.append(line)), []
        jobs = [one.submit("x", b"a"), one.submit(name, b"b"), one.submit("x", b"c")]
        taken = one._take()
        assert one._ask(0, taken) == [None] * 3
        for job in (one._take() for _ in range(3)):
            assert len(job) == 1
            job[0].future.set_result(one._ask(0, job)[0])
        assert [job.result(5)[0] for job in jobs] == [200, status, 200]
        assert any(line.startswith(name) for line in log)

    def test_a_lane_works_on_after_a_time_limit(self, lane):
        one = lane()
        assert one.submit("slow", b"").result(5)[0] == 504
        assert one.submit("x", b"y").result(5) == (200, b"1 y")

    def test_too_many_wait(self, lane):
        one = lane(workers=0, waiting=2)
        one.submit("x", b"")
        one.submit("x", b"")
        with pytest.raises(RefusedError, match="too many requests") as refused:
            one.submit("x", b"")
        assert refused.value.status == 503

    def test_a_closed_lane_answers_what_waits_and_takes_no_more(self, lane):
        one = lane(workers=0)
        waiting = one.submit("x", b"")
        one.close()
        assert waiting.result(0)[0] == 503
        with pytest.raises(RefusedError, match="stopping"):
            one.submit("x", b"")

    def test_a_closed_lane_answers_those_that_were_put_back(self, lane):
        one = lane(workers=0)
        futures = [one.submit("x", b"a"), one.submit("deadly", b"b")]
        one._ask(0, one._take())
        one.close()
        assert [future.result(0)[0] for future in futures] == [503, 503]

    def test_nothing_is_put_back_into_a_closed_lane(self, lane, monkeypatch):
        """The lane closes between the end of a worker and the look at what it had to do."""
        one = lane(workers=0)
        one.submit("x", b"a")
        one.submit("deadly", b"b")
        taken = one._take()
        monkeypatch.setattr(one, "_drop", lambda number: one.close())
        assert [answer[0] for answer in one._ask(0, taken)] == [503, 503]
        assert not one._jobs
        assert not one._put_back(taken)

    def test_a_lane_works_on_where_no_process_can_be_started(self, lane, monkeypatch):
        one, real = lane(), FakeWorker.__init__

        def full(self, nice):
            monkeypatch.setattr(FakeWorker, "__init__", real)
            raise GoneError("too many open files")

        monkeypatch.setattr(FakeWorker, "__init__", full)
        assert one.submit("x", b"y").result(5)[0] == 503
        assert one.submit("x", b"y").result(5) == (200, b"1 y")

    def test_cancelled_jobs_are_left_out(self, lane):
        one = lane(workers=0)
        one.submit("x", b"a").cancel()
        one.submit("x", b"b")
        assert [job.body for job in one._take()] == [b"b"]

    def test_one_that_nobody_waits_for_frees_its_process(self, lane):
        log = []
        one = lane(together=1, log=log.append)
        running, waiting, other = one.submit("endless", b""), one.submit("endless", b""), one.submit("x", b"y")
        while not one._computed:
            time.sleep(0.01)
        one.abandon(waiting)
        one.abandon(running)
        assert other.result(5) == (200, b"1 y")
        assert log == ["endless: given up, its client has gone", "a line"]

    def test_a_process_that_was_killed_while_it_waited_is_replaced(self, lane):
        one = lane()
        assert one.submit("x", b"y").result(5) == (200, b"1 y")
        one._workers[0].kill()
        assert one.submit("x", b"y").result(5) == (200, b"1 y")
        assert one._workers[0].alive()

    def test_one_among_others_does_not_take_them_with_it(self, lane):
        one = lane(workers=0)
        jobs = [one.submit("x", b"a"), one.submit("x", b"b")]
        one._worker(0, one._take())
        one.abandon(jobs[0])
        assert 0 in one._workers


def test_a_process_that_is_over_its_time_is_ended_and_one_that_is_not_answers():
    worker = Worker()
    (answer, *_), lines = worker.ask([("gpu", b"b200")], 60.0)
    assert (answer[0], json.loads(answer[1])["id"], lines) == (200, "b200", [])
    body = json.dumps({"model": "deepseek-v3", "gpu": "b200", "tokens": list(range(1, 1001))}).encode()
    with pytest.raises(OverTimeError):
        worker.ask([("gap", body)], 1e-3)
    worker.kill()
    with pytest.raises(GoneError):
        worker.ask([("gpu", b"b200")], 60.0)


def test_connections_that_bring_no_request_are_closed_and_others_are_not():
    class Connection:
        def __init__(self, **cycle):
            vars(self).update(cycle)

    done, other, busy = (SimpleNamespace(response_complete=complete) for complete in (True, True, False))
    connections = [Connection(cycle=None), Connection(cycle=done), Connection(cycle=busy), Connection()]
    found = Silent()
    assert found.over(connections, 100.0) == []
    assert found.over(connections, 100.0 + REQUEST_S - 1) == []
    connections[1].cycle = other  # a second request was answered meanwhile
    assert found.over(connections, 100.0 + REQUEST_S) == [connections[0]]
    assert found.over(connections[1:], 100.0 + 2 * REQUEST_S) == [connections[1]]


def test_several_threads_may_end_a_process():
    worker, closed = Worker(), []
    close = worker._connection.close

    def slowly():
        time.sleep(0.05)
        close()
        closed.append(1)

    worker._connection.close = slowly
    threads = [threading.Thread(target=worker.kill) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert closed == [1]
    assert not worker.alive()


def test_a_process_that_cannot_be_started_is_gone(monkeypatch):
    def full(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", full)
    with pytest.raises(GoneError, match="Too many open files"):
        Worker()


class TestSpecs:
    def test_a_bundled_file_is_right_as_text_as_an_object_and_as_yaml(self):
        answer = validate_yaml(H20.encode())
        assert (answer["ok"], answer["errors"], answer["gpu"]["id"]) == (True, [], "h20")
        assert validate_spec(json.dumps({"spec": H20}).encode()) == answer
        assert validate_spec(json.dumps({"spec": answer["gpu"]}).encode()) == answer

    def test_every_mistake_has_line_field_value_and_mend(self):
        lines = H20.splitlines()
        wrong = H20.replace("value: 4000,", "value: -4,").replace("architecture: hopper", "architecture: hoper")
        answer = validate_yaml(wrong.encode())
        found = {error["field"]: error for error in answer["errors"]}
        assert not answer["ok"]
        assert set(found) == {"architecture", "memory.bandwidth_GBps"}
        bandwidth = found["memory.bandwidth_GBps"]
        assert (bandwidth["value"], bandwidth["mend"]) == (-4, "Give 1 to 1,000,000 GB/s.")
        assert lines[bandwidth["line"] - 1].strip().startswith("bandwidth_GBps: {value: 4000")
        assert lines[found["architecture"]["line"] - 1] == "architecture: hopper"
        assert found["architecture"]["value"] == "hoper"

    def test_the_documented_mistake_is_what_is_answered(self):
        page = (Path(__file__).parents[1] / "docs" / "server.md").read_text()
        shown = page.split("```json\n")[1].split("```")[0]
        assert json.loads(shown) == validate_yaml(H20.replace("value: 4000,", "value: -4,").encode())

    def test_broken_yaml_has_its_line(self):
        (error,) = validate_yaml(b"id: x\nname: [\n")["errors"]
        assert error["line"] == 3
        assert "broken YAML" in error["message"]

    def test_of_an_object_the_line_is_that_of_the_request(self):
        spec = {**validate_yaml(H20.encode())["gpu"], "architecture": "hoper"}
        raw = json.dumps({"spec": spec}, indent=1)
        (error,) = validate_spec(raw.encode())["errors"]
        assert '"architecture": "hoper"' in raw.splitlines()[error["line"] - 1]

    def test_a_diff_as_text_and_as_an_object(self):
        faster = H20.replace("value: 4000,", "value: 4800,")
        diff = "\n".join(difflib.unified_diff(H20.splitlines(), faster.splitlines(), "a", "b", lineterm=""))
        as_text = validate_spec(json.dumps({"gpu": "h20", "diff": diff}).encode())
        as_object = validate_spec(json.dumps({"gpu": "h20", "diff": {"memory": {"bandwidth_GBps": 4800}}}).encode())
        assert [answer["gpu"]["memory"]["bandwidth_GBps"]["value"] for answer in (as_text, as_object)] == [4800, 4800]
        assert as_object["gpu"]["memory"]["bandwidth_GBps"]["status"] == "user"
        assert as_text["gpu"]["memory"]["capacity_GB"] == as_object["gpu"]["memory"]["capacity_GB"]

    def test_changes_that_contradict_are_the_answer(self):
        body = {"gpu": "b200", "changes": ["compute.sm_count=10", "compute.dense_tflops.fp4=9000"]}
        answer = validate_spec(json.dumps(body).encode())
        assert not answer["ok"]
        assert answer["errors"][0]["field"] == "compute.dense_tflops.fp4"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"spec": "a: 1", "gpu": "b200"},
            {"spec": "a: 1", "diff": "x"},
            {"gpu": "/etc/passwd"},
            {"gpu": "../gpu_specs/b200.yaml"},
            {"file": "b200.yaml"},
            {"gpu": "b200", "changes": 5},
        ],
    )
    def test_requests_that_are_none(self, body):
        with pytest.raises(PerfModelError):
            validate_spec(json.dumps(body).encode())

    @pytest.mark.parametrize("diff", ["nothing", "@@ -1,1 +1,1 @@\n-not there\n+x", "@@ -999,1 +1,1 @@\n-x", "@@ -1 +1 @@\n?"])
    def test_diffs_that_do_not_apply(self, diff):
        (error,) = validate_spec(json.dumps({"gpu": "h20", "diff": diff}).encode())["errors"]
        assert error["field"] == "diff"


LINES = st.lists(st.sampled_from(["a", "b", "", "  c", "-d", "+e", "@@"]), max_size=12)


@given(LINES, LINES, st.integers(0, 4))
def test_a_unified_diff_leads_from_one_text_to_the_other(old, new, context):
    diff = "\n".join(difflib.unified_diff(old, new, "old", "new", n=context, lineterm=""))
    if diff:
        assert patched("\n".join([*old, ""]), diff).splitlines() == new


def test_every_bundled_gpu_is_right():
    assert all(validate_spec(json.dumps({"gpu": name}).encode())["ok"] for name in gpu_ids()[:5])
