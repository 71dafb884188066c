"""What C++ takes numbers for is what Python's tables say, and another table is another library."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import attrs
import pytest

import turret
from turret.frames import frame_hook, guard_tree
from turret.plan.launch.driver_library import GRAPHS, LAUNCHER
from turret.storage.extension import Extension
from turret.storage.native_enums import HEADER

PARTS = {
    "frame hook": frame_hook.EXTENSION,
    "guard tree": guard_tree.extension(),
    "launcher": LAUNCHER,
    "graphs": GRAPHS,
}


class Fruit(enum.IntEnum):
    APPLE = 0
    PEAR = 7


class Nuts(enum.IntEnum):
    PEAR = 3


SOURCE = f"""\
#include <Python.h>
#include "{HEADER}"
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_turret_numbers", nullptr, -1, nullptr}};
PyMODINIT_FUNC PyInit__turret_numbers() {{
  PyObject* made = PyModule_Create(&module);
  PyModule_AddObject(made, "numbers", Py_BuildValue("LLLL", static_cast<long long>(Fruit::APPLE),
    static_cast<long long>(Fruit::PEAR), static_cast<long long>(Nuts::PEAR), static_cast<long long>(Fruit::count)));
  return made;
}}
"""


def test_cpp_sees_the_numbers_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("TURRET_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "numbers.cpp").write_text(SOURCE)
    module = Extension(tmp_path / "numbers.cpp", "this test", enums=(Fruit, Nuts)).load()
    assert module.numbers == (Fruit.APPLE, Fruit.PEAR, Nuts.PEAR, len(Fruit))


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_another_table_has_another_key(name):
    part = PARTS[name]
    changed = enum.IntEnum(part.enums[0].__name__, {m.name: m.value + 1 for m in part.enums[0]})
    assert attrs.evolve(part, enums=(changed, *part.enums[1:])).key() != part.key()


@pytest.mark.parametrize("name", PARTS)
def test_members_are_numbered_from_0_for_what_compares_with_the_count(name):
    for table in PARTS[name].enums:
        assert [member.value for member in table] == list(range(len(table)))


def test_every_table_is_used_by_the_source_that_includes_it():
    for part in PARTS.values():
        sources = (part.source, *getattr(part, "headers", ()))
        text = "\n".join(path.read_text() for path in sources)
        assert f'#include "{HEADER}"' in text
        assert all(f"{table.__name__}::" in text for table in part.enums)


def test_no_native_source_has_a_table_of_its_own_for_what_python_has_one():
    folder = Path(turret.__file__).parent
    tables = {table.__name__: {m.name for m in table} for part in PARTS.values() for table in part.enums}
    for path in (*folder.rglob("*.cpp"), *folder.rglob("*.h")):
        for body in re.findall(r"\benum\b[^;{]*\{([^}]*)\}", path.read_text()):
            members = {re.sub(r"^k(?=[A-Z])", "", m).upper() for m in re.findall(r"\b(\w+)\s*(?:=[^,]*)?(?:,|$)", body)}
            assert not any(members >= {m.replace("_", "") for m in names} for names in tables.values()), (path, body)
