"""`perfmodel formats`: the table and the JSON, joined with the GPUs of the catalogue."""

import json
import resource
import subprocess
import sys
from io import StringIO
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from perfmodel.cli import formats as command
from perfmodel.errors import PerfModelError
from perfmodel.formats import format_ids, get_format
from perfmodel.hardware import gpu_ids, load_gpu
from perfmodel.report.formats import formats_data, print_formats

ALONE = "import typer, perfmodel.cli.formats as c; a = typer.Typer(); c.register(a); a.callback()(lambda: None); a(['formats'])"


def run(*arguments):
    app = typer.Typer()
    command.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["formats", *arguments], catch_exceptions=True)


@pytest.fixture(scope="module")
def data():
    return json.loads(run("--json").stdout)


def test_json_holds_every_format_and_gpu(data):
    assert data["schema"] == "perfmodel.formats/1"
    assert [form["id"] for form in data["formats"]] == format_ids()
    assert sorted(gpu for gpus in data["architectures"].values() for gpu in gpus) == sorted(gpu_ids())


def test_json_agrees_with_what_the_model_uses(data):
    """The type printed for a GPU is the one that `math_type` gives there, and where it prints none, `math_type` refuses."""
    for gpu in map(load_gpu, gpu_ids()):
        for form in data["formats"]:
            printed = form["gpus"][gpu.id]
            if printed is None:
                with pytest.raises(PerfModelError):
                    get_format(form["id"]).math_type(gpu.math_types)
            else:
                assert printed == get_format(form["id"]).math_type(gpu.math_types)


def test_known_cells(data):
    forms = {form["id"]: form for form in data["formats"]}
    assert forms["nvfp4"]["weights"]["bits"] == 4.5
    assert forms["nvfp4"]["architectures"]["hopper"] is None
    assert forms["nvfp4"]["architectures"]["blackwell"] == {"math": "fp4", "execution": "native", "on_all_gpus": True}
    assert forms["mxfp8"]["architectures"]["hopper"] == {"math": "fp8", "execution": "rescaled", "on_all_gpus": True}
    assert forms["mxfp4-w4a16"]["architectures"]["hopper"]["execution"] == "dequantised"
    assert "h200" not in forms["nvfp4"]["native_gpus"]
    assert "b200" in forms["nvfp4"]["native_gpus"]
    assert forms["mxfp4-w4a16"]["native_gpus"] == []


def test_architectures_named_by_formats_exist():
    architectures = {load_gpu(gpu).architecture for gpu in gpu_ids()}
    named = {architecture for name in format_ids() for architecture in get_format(name).scaled_in_hardware}
    assert "blackwell" in architectures
    assert named <= {"volta", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx"}


def test_elements_include_those_of_no_format(data):
    elements = {element["element"]: element for element in data["elements"]}
    assert elements["e3m0"]["math"] is None
    assert elements["e3m0"]["gpus"] == []
    assert elements["e2m1"]["values"] == [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert elements["e5m2"]["max"] == 57344


def test_the_table_fits_80_columns_and_explains_its_marks():
    text = run().stdout
    assert max(map(len, text.splitlines())) <= 80
    for word in (*format_ids(), "4.125", "8.002", "0.5..6", "fp8 rs", "bf16 dq", "E3M0", "E4M3/16 FP32", "b200", "Student t"):
        assert word in text
    assert "…" not in text


def test_a_gpu_that_differs_from_its_architecture_is_marked():
    """As a chip of a family whose units were cut: the table says `some`, the JSON says which."""
    whole = SimpleNamespace(id="whole", architecture="hopper", compute_capability="9.0", math_types=("bf16", "fp8"))
    cut = SimpleNamespace(id="cut", architecture="hopper", compute_capability="9.0", math_types=("bf16",))
    data = formats_data([get_format("fp8")], [whole, cut])
    assert data["formats"][0]["architectures"]["hopper"] == {"math": "fp8", "execution": "native", "on_all_gpus": False}
    assert data["formats"][0]["gpus"] == {"whole": "fp8", "cut": None}
    console = Console(record=True, width=80, file=StringIO())
    print_formats(data, console)
    assert "fp8 some" in console.export_text()


def test_architectures_are_in_the_order_of_their_age(data):
    assert list(data["architectures"]) == ["volta", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx"]


def test_some_formats_by_name_in_the_order_given():
    chosen = json.loads(run("nvfp4", "bf16", "nvfp4", "--json").stdout)
    assert [form["id"] for form in chosen["formats"]] == ["nvfp4", "bf16"]


def test_an_unknown_name_is_the_users_mistake():
    result = run("nvfp5")
    assert isinstance(result.exception, PerfModelError)
    assert "Did you mean nvfp4?" in str(result.exception)


def test_help_has_an_example():
    assert "perfmodel formats nvfp4" in run("--help").stdout


def test_the_shell_answers_in_under_3_seconds():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", ALONE], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
