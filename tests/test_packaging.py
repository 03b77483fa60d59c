"""What is installed is what is in the checkout: the package tables, the links, the wheel's content, and a light import."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """A wheel built from a copy, so that the build leaves nothing in the checkout; the network is not used."""
    copy, out = tmp_path_factory.mktemp("copy") / "project", tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns(
        ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "*.egg-info", "__pycache__"
    )
    shutil.copytree(ROOT, copy, symlinks=True, ignore=skip)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return zipfile.ZipFile(next(out.glob("perfmodel-*.whl")))


def test_wheel_holds_the_data(wheel):
    names = set(wheel.namelist())
    for folder in ("perfmodel", *LINKED):
        for path in (ROOT / folder).rglob("*"):
            parts = path.relative_to(ROOT).parts
            data = path.suffix in (".yaml", ".csv", ".css", ".py") or path.name in (".schema.json", "py.typed")
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
