"""The source of a small extension module, which has the macro ``ANSWER`` as its constant ``answer``."""

from __future__ import annotations

SOURCE = """
#include <Python.h>
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_turret_answer", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__turret_answer(void) {
  PyObject* made = PyModule_Create(&module);
  PyModule_AddIntConstant(made, "answer", ANSWER);
  return made;
}
"""
