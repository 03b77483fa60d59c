"""What is installed is what is in the checkout: the package tables, the links, the wheel's content, and a light import."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from perfmodel.cli import completion

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("gpu_specs", "kernels", "validation")
HEAVY = ("aiconfigurator_core", "duckdb", "matplotlib", "numba", "pandas", "pyarrow", "rich", "ruamel", "scipy", "torch", "typer")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def folders_with_code() -> set[str]:
    """Import names of the folders that hold Python files."""
    found = set()
    for top, prefix in (("perfmodel", ""), *((name, "perfmodel.") for name in LINKED)):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.parent.relative_to(ROOT).parts
            if not (top == "perfmodel" and len(parts) > 1 and parts[1] in LINKED):
                found.add(prefix + ".".join(parts))
    return found


def test_every_folder_with_code_is_packaged():
    setuptools = project()["tool"]["setuptools"]
    assert set(setuptools["packages"]) == folders_with_code()


def test_package_dir_leads_to_the_folder_of_each_package():
    setuptools = project()["tool"]["setuptools"]
    mapping = setuptools["package-dir"]
    for package in setuptools["packages"]:
        head, tail = package, []
        while head not in mapping:  # setuptools goes up to the nearest parent that the table names
            head, _, last = head.rpartition(".")
            tail.insert(0, last)
        top = package.split(".")[1] if package.count(".") and package.split(".")[1] in LINKED else "perfmodel"
        folder = Path(mapping[head], *tail)
        assert folder.parts[0] == top, f"{package} would be taken from {folder}"
        assert (ROOT / folder / "__init__.py").exists() or any((ROOT / folder).glob("*.py")), folder


@pytest.mark.parametrize("name", LINKED)
def test_links_resolve_relatively(name):
    if (ROOT / "PKG-INFO").exists():
        pytest.skip("a source distribution has no links: install it")
    link = ROOT / "perfmodel" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert link.resolve() == ROOT / name


def test_import_is_light():
    code = "import sys, perfmodel; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert "perfmodel" in loaded
    assert not set(HEAVY) & set(loaded)


def test_public_names_stay_what_they_are_however_often_they_are_used():
    """A submodule of the same name would take a function's place as soon as it is imported."""
    code = "import perfmodel; print(*(n for n in perfmodel.__all__ for _ in range(2) if not callable(getattr(perfmodel, n))))"
    wrong = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert not wrong


def test_nothing_names_a_path_of_one_machine():
    """Addresses of package registries and absolute paths of a developer's machine do not travel."""
    words = ["/home" + "/", "/root" + "/", "/work" + "/", "../" + "shared", "index" + "-url", "pypi" + ".org"]
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and not path.is_symlink() and path.suffix not in (".png", ".npy", ".parquet"):
            text = path.read_text(errors="replace")
            assert not [word for word in words if word in text], name


def run(*command, **options) -> str:
    """What a command prints. Fails with the end of what it says where it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    """A folder with a wheel and a source distribution, built from a copy, so that nothing is left in the checkout; without the network."""
    copy, out = tmp_path_factory.mktemp("copy") / "project", tmp_path_factory.mktemp("archives")
    skip = shutil.ignore_patterns(
        ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist", "site", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, copy, symlinks=True, ignore=skip)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, copy)
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})", cwd=copy)
    return out


@pytest.fixture(scope="module")
def wheel(archives) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(archives.glob("perfmodel-*.whl")))


def test_wheel_holds_the_data(wheel):
    names = set(wheel.namelist())
    for folder in ("perfmodel", *LINKED):
        for path in (ROOT / folder).rglob("*"):
            parts = path.relative_to(ROOT).parts
            data = path.is_file() and path.suffix not in (".md", ".pyc")
            if data and "__pycache__" not in parts and not (folder == "perfmodel" and parts[1] in LINKED):
                inside = "/".join(parts if folder == "perfmodel" else ("perfmodel", *parts))
                assert inside in names, f"{inside} is not in the wheel"


def test_wheel_owns_nothing_outside_perfmodel(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"perfmodel", f"perfmodel-{project()['project']['version']}.dist-info"}
    assert len(wheel.namelist()) == len(set(wheel.namelist()))


def test_wheel_starts_the_command(wheel):
    entry = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "perfmodel = perfmodel.cli:main" in wheel.read(entry).decode()


def test_wheel_runs_where_nothing_of_the_checkout_is(archives, tmp_path):
    """In an environment of its own, which borrows no more than what the project depends on."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", next(archives.glob("*.whl")))
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (packages / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = python.with_name("perfmodel")
    version = project()["project"]["version"]
    assert run(command, "--version", cwd=tmp_path, env=clean) == f"perfmodel {version}\n"
    assert "weight traffic" in run(command, "gap", "gpt-oss-20b", "--gpu", "b200", cwd=tmp_path, env=clean)
    asked = {"_PERFMODEL_COMPLETE": "complete_bash", "COMP_WORDS": "perfmodel gap --gpu h20", "COMP_CWORD": "3"}
    assert run(command, cwd=tmp_path, env=clean | asked).split() == ["h20", "h200"]  # what the shell asks after Tab
    where = run(python, "-c", "import perfmodel.kernels as k; print(k.__file__)", cwd=tmp_path, env=clean)
    assert Path(where.strip()).is_relative_to(packages)


def test_sdist_holds_all_that_is_tracked_but_the_links(archives):
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    with tarfile.open(next(archives.glob("perfmodel-*.tar.gz"))) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in listed.stdout.splitlines() if (ROOT / name).exists()} - inside == {f"perfmodel/{name}" for name in LINKED}
    assert not [name for name in inside if name.startswith(tuple(f"perfmodel/{link}/" for link in LINKED))]


def test_changelog_begins_with_the_version():
    found = re.findall(r"^## \[(.+?)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert found[0][0] == project()["project"]["version"]


@pytest.mark.parametrize(
    ("complete", "begun", "offered"),
    [
        (completion.complete_gpu, "h20", ["h20", "h200"]),
        (completion.complete_model, "gpt-oss-2", ["gpt-oss-20b"]),
        (completion.complete_kernel, "au", ["auto"]),
        (completion.complete_format, "nv", ["nvfp4", "nvfp4-w4a16"]),
        (completion.complete_gpu, "./mine", []),  # the shell completes paths
    ],
)
def test_ids_are_completed(complete, begun, offered):
    assert complete(begun) == offered
