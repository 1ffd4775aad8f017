"""What is written for builders of packages agrees with pyproject.toml: the conda recipe, the wheels' platforms."""

import re
import tomllib

import pytest


@pytest.fixture
def project(checkout):
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def recipe(checkout):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((checkout / "conda" / "recipe.yaml").read_text(encoding="utf-8"))


def as_pip_writes(needs, *leave_out):
    """Requirements of conda, `name >=1`, as pip has them, without what pip says elsewhere."""
    return sorted(need.replace(" ", "", 1) for need in needs if need.split()[0] not in leave_out)


def test_recipe_is_of_this_version(project, recipe):
    assert recipe["context"]["version"] == project["project"]["version"]
    assert recipe["about"]["license"] == project["project"]["license"]
    assert recipe["about"]["summary"] in project["project"]["description"]


def test_recipe_needs_what_pip_needs(project, recipe):
    needs = recipe["requirements"]
    assert as_pip_writes(needs["host"], "python", "pip") == sorted(project["build-system"]["requires"])
    assert as_pip_writes(needs["run"], "python") == sorted(project["project"]["dependencies"])
    assert f"python {project['project']['requires-python']}" in needs["run"]


def test_recipe_has_the_commands(project, recipe):
    commands = [f"{name} = {target}" for name, target in project["project"]["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == commands


def test_wheels_are_of_the_pythons_that_are_named(project):
    """Each Python among the classifiers has wheels; a free-threaded one has them, and is named nowhere."""
    plain, free = project["tool"]["cibuildwheel"]["build"]
    built = {f"3.1{minor}" for minor in re.fullmatch(r"cp31\{([\d,]+)\}-\*", plain)[1].split(",")}
    classifiers = project["project"]["classifiers"]
    named = {text.rpartition(" ")[2] for text in classifiers if re.search(r"Python :: 3\.\d+$", text)}
    assert named <= built and free == "cp314t-*"
    assert not [text for text in classifiers if "Free Threading" in text]  # the core's tests alone have run on one


def test_workflow_runs_the_smoke_test_and_has_no_secrets(checkout, project):
    workflow = (checkout / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    assert "secrets." not in workflow
    assert all(re.fullmatch(r"[\w./-]+@v\d+(\.\d+)*", used) for used in re.findall(r"uses: (\S+)", workflow))
    assert (checkout / project["tool"]["cibuildwheel"]["test-command"].rpartition("{project}/")[2]).is_file()
