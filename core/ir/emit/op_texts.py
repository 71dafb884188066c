"""How languages write the scalar ops: a template of each op, by the kind of its arguments.

A code generator makes one ``OpTexts`` of its tables and asks it for templates.  Who adds an op from outside
(``turret.graph.scalar_ops.register``) registers its templates there, language by language.
"""

from __future__ import annotations

from collections.abc import Mapping

from turret.errors import OptionError, UnsupportedError
from turret.graph.scalar_ops import ADDED, OPS

LANGUAGES: dict[str, OpTexts] = {}
"""The languages of the code generators that are loaded, by name."""


class OpTexts:
    """The scalar ops in one language.

    ``tables`` has templates by kind of argument and op: of the kinds ``float``, ``int`` (signed or not) and ``bool``,
    and of narrower ones that the code generator asks for first.  A template has ``{0}``, ``{1}``, ``{2}`` for the
    arguments, and words that the language documents.  ``missing`` says by op and kind what else to do where the
    language cannot write one.  ``functions`` are sources by name, of which a unit gets those that its text mentions.
    """

    def __init__(
        self,
        language: str,
        tables: Mapping[str, Mapping[str, str]],
        missing: Mapping[tuple[str, str], str],
        functions: dict[str, str],
    ) -> None:
        self.language = language
        self.missing = missing
        self.tables = {kind: dict(table) for kind, table in tables.items()}
        self.functions = functions
        self._added: dict[str, tuple[str, ...]] = {}
        LANGUAGES[language] = self

    def template(self, op: str, argument: object, *kinds: str) -> str:
        """The template of an op on arguments of the first of ``kinds`` that has one.

        ``argument`` is how an error names their dtype: ``UnsupportedError`` where there is none.
        """
        for kind in kinds:
            if (op, kind) in self.missing:
                raise UnsupportedError(f"{op} of {argument} in {self.language} kernels; {self.missing[op, kind]}")
            found = self.tables.get("int" if kind == "uint" else kind, {}).get(op)
            if found is not None:
                return found
        raise UnsupportedError(f"{op} of {argument} has no meaning in {self.language} kernels")

    def register(self, op: str, functions: Mapping[str, str] | None = None, **templates: str) -> None:
        """Add the templates of an op by kind, and the functions that they call.

        ``OptionError`` where the op is not in the table, has templates here, or a kind or function is not free.
        """
        functions = functions or {}
        problems = [f"there is no kind {kind!r}" for kind in templates if kind not in self.tables]
        problems += [f"there is a function {name!r} already" for name in functions if name in self.functions]
        if op not in OPS:
            problems.append("register it with turret.graph.scalar_ops first")
        if any(op in table for table in self.tables.values()):
            problems.append("it has templates already")
        if problems:
            kinds = ", ".join(self.tables)
            raise OptionError(f"{self.language} text of {op!r}: {'; '.join(problems)} (kinds: {kinds})")
        for kind, template in templates.items():
            self.tables[kind][op] = template
        self.functions.update(functions)
        self._added[op] = tuple(functions)
        ADDED[self.language, op] = repr((templates, dict(functions)))

    def unregister(self, op: str) -> None:
        """Take back what ``register`` added for an op; ``OptionError`` where that is nothing."""
        if op not in self._added:
            raise OptionError(f"{self.language} text of {op!r} was not added by register")
        for table in self.tables.values():
            table.pop(op, None)
        for name in self._added.pop(op):
            del self.functions[name]
        del ADDED[self.language, op]
