"""What came late to the random functions: indices that change sign or pass an end, checkpoints, inference mode,
conjugate and negative views, what answers for torch's functions, arrays of numpy, ``out=``, operands of several dtypes
and layouts, hooks that are removed again, autograd functions of several results, and states of ``random``."""

from __future__ import annotations

from tests.fuzz.function_expressions import Expressions, rule

LATER_FEATURES: dict[str, tuple[float, tuple[str, ...]]] = {
    "settings": (0.4, ("signed", "checkpoints", "inference", "conjugates")),
    "latest settings": (0.25, ("classes", "arrays")),
    "newest settings": (0.2, ("references", "wrappers", "duals")),
    "freshest settings": (0.2, ("outs", "layouts", "handles", "functions", "drawing")),
}
"""How often each is drawn, in the order in which they came: each row apart from the others, so that a seed without its
features gives the program that it always gave."""


class Settings(Expressions):
    """Statements and expressions of ``LATER_FEATURES``."""

    # Indices.

    @rule("tensor", 4, "signed")
    def tensor_by_index(self, d: int) -> str:
        t, u, i, j = self.some("tensor", d), self.var("tensor"), self.some("int", d), self.some("int", 0)
        return self.one(
            f"torch.cat([{t}[{i}:], {t}[:{i}]])", f"({t} + {t}[{i}])", f"({t} * {t}[{i}:{j}].sum())", f"({t} - {t}[:, {i}:].sum())",
            f"torch.roll({t}, {i}, 0)", f"({t} + {t}[-{u}.shape[0]:].sum(0))", f"({t} * {t}[{i}:{i} + 2].numel())",
            f"({t} + {t}.select(1, {i}).sum())", f"torch.select_scatter({t}, {t}[0], 0, {i})", f"({t} * {t}[-({u}.shape[0] // 2):].mean())",
            f"torch.cat([{t}[:{i}] * 2, {t}[{i}:]])", f"({t} + torch.tensor({i} // 2))", f"{t}[[{i}] * {t}.shape[0]]",
            f"({t} + {t}.narrow(0, {i}, 1))", f"F.pad({t}[:, {i}:], (0, 3 - {t}[:, {i}:].shape[1]))", f"torch.tril({t}, {i})",
        )  # fmt: skip

    @rule("row", 2, "signed")
    def row_by_index(self, d: int) -> str:
        t, i, j = self.var("tensor"), self.some("int", 0), self.some("int", 0)
        return self.one(
            f"{t}[{i}]", f"{t}.select(0, {i})", f"{t}[{i}:{j}].sum(0)", f"{t}[:{i}].sum(0)", f"{t}[{i}::2].sum(0)"
        )

    @rule("simple", 3, "signed")
    def write_by_index(self) -> None:
        t, i, j = self.var("tensor"), self.some("int", 1), self.some("int", 0)
        if "in_place" not in self.features:
            self.bind("tensor", f"torch.slice_scatter({t}, {t} * 2, 0, 0, {t}.shape[0])")
            return
        self.line(
            self.one(
                f"{t}[{i}] = {j}", f"{t}[{i}:] = 2", f"{t}[:{i}].zero_()", f"{t}[{i}:{j}] = 0.5", f"{t}.select(1, {i}).add_(1)",
                f"{t}[{i}:{i} + 2] *= 2", f"{t}[:, {i}] = 1", f"{t}[{i}:, {j}:].neg_()", f"{t}[{i}][{j}] = 3", f"{t}[-{t}.shape[0]:] += 1",
            )
        )  # fmt: skip

    # Checkpoints.

    @rule("tensor", 4, "checkpoints")
    def tensor_checkpointed(self, d: int) -> str:
        t, i = self.some("tensor", d), self.some("int", 0)
        called = self.one(
            f"torch.tanh, {t}", f"lambda v: v.sin() * {i}, {t}", f"scaled_sum, {t}, 0.5", f"decorated, {t}", f"{self.var('func')}, {t}",
            f"lambda v, w: (v * w).tanh() + v, {t}, {self.var('tensor')}", f"F.softmax, {t}, -1", f"Block(3), {t}",
        )  # fmt: skip
        return f"checkpoint({called}, use_reentrant=False)"

    # Inference mode.

    @rule("compound", 3, "inference")
    def with_inference_mode(self) -> None:
        self.line(f"with torch.inference_mode({self.one('', '', 'False')}):")
        with self.indented():
            for _ in range(self.random.randint(1, 3)):
                self.statement()

    @rule("tensor", 2, "inference")
    def tensor_made_in_inference_mode(self, d: int) -> str:
        t = self.some("tensor", d)
        return self.one(
            f"torch.inference_mode()(lambda v: v * 2)({t})", f"without_history({t})", f"without_history({t}).clone()"
        )

    @rule("bool", 1, "inference")
    def bool_of_inference_mode(self, d: int) -> str:
        return self.one("torch.is_inference_mode_enabled()", f"{self.var('tensor')}.is_inference()")

    # Conjugate and negative views.

    @rule("tensor", 3, "conjugates")
    def tensor_of_conjugate(self, d: int) -> str:
        t, u = self.some("tensor", d), self.var("tensor")
        return self.one(
            f"torch.complex({t}, {t} * 2).conj().imag", f"torch.complex({t}, {t}).conj().real", f"({t} + WAVE.imag[0])", f"({t} * WAVE.real[1])",
            f"(torch.complex({t}, {t}).conj() * 1j).imag", f"({t} - WAVE.conj().imag[0])", f"torch.view_as_real(torch.complex({t}, {t}).conj().resolve_conj())[..., 1]",
            f"(torch.sin(WAVE.real).sum() + WAVE.imag.sum() * 2) * {u}", f"torch.complex({t}, {t}).conj().imag.neg()", f"(WAVE.abs().sum() + {t})",
        )  # fmt: skip

    @rule("simple", 1.5, "conjugates")
    def change_conjugate(self) -> None:
        name = self.name("wave")
        self.line(f"{name} = torch.complex({self.var('tensor')}, {self.var('tensor')}).conj()")
        self.line(
            self.one(
                f"log.append({name}.is_conj())", f"log.append({name}.imag.is_neg())", f"{name}.imag.add_(1)", f"{name}.mul_(2)",
                "WAVE.mul_(0.5)", "WAVE.imag.add_(1)", f"log.append({name})", f"log.append({name}.imag)",
            )
        )  # fmt: skip
        self.bind("tensor", f"{name}.{self.one('imag', 'real', 'abs()')}")

    # What answers for torch's functions.

    @rule("tensor", 3, "classes")
    def tensor_of_class(self, d: int) -> str:
        t, u, i = self.some("tensor", d), self.var("tensor"), self.some("int", 0)
        kind, other = self.one("Quiet", "Doubling", "Noting"), self.one("Quiet", "Noting")
        return self.one(
            f"plain(torch.sin({t}.as_subclass({kind})) + {u})", f"plain({u} - {t}.as_subclass({kind}) * {i})",
            f"plain(torch.cat([{t}.as_subclass({kind}), {u}.as_subclass({kind})])[:{u}.shape[0]])",
            f"plain(F.relu({t}.as_subclass({kind})).view(-1, 3) * {t}.as_subclass({kind}).shape[0])",
            f"torch.add(Holding({t}), {u}).held", f"under(Halving({i}), lambda: torch.sin({t}) * 2 + {u}[0])",
            f"plain({t}.as_subclass({other}).noted({i}))" if other == "Noting" else f"plain(-{t}.as_subclass({other}))",
        )  # fmt: skip

    @rule("simple", 1.5, "classes")
    def change_of_class(self) -> None:
        name = self.name("kept")
        self.line(f"{name} = ({self.var('tensor')} * 1).as_subclass({self.one('Quiet', 'Doubling', 'Noting')})")
        self.line(self.one(f"{name}.add_(1)", f"{name}[0] = 2", f"{name} *= 3", f"{name}.tag = {self.some('int', 0)}"))
        self.line(self.one(f"log.append(type({name}).__name__)", f"log.append(getattr({name}, 'tag', 0))", "pass"))
        self.bind("tensor", f"plain({name})")

    # Arrays of numpy.

    @rule("tensor", 3, "arrays")
    def tensor_of_array(self, d: int) -> str:
        t, i = f"{self.some('tensor', d)}.detach().resolve_neg()", self.some("int", 0)
        return self.one(
            f"torch.from_numpy(numpy.square({t}.numpy()) * 2)", f"torch.from_numpy({t}.numpy() - {t}.numpy().mean(0))",
            f"torch.from_numpy(numpy.maximum({t}.numpy(), {i}))", f"torch.from_numpy({t}.numpy()[:, ::-1] + 1)",
            f"torch.from_numpy(numpy.where({t}.numpy() > 0, {t}.numpy(), numpy.float32({i})))",
            f"torch.from_numpy(numpy.concatenate([{t}.numpy()[:1], {t}.numpy()])[1:])",
            f"torch.from_numpy({t}.numpy() * numpy.arange(3, dtype=numpy.float32))",
        )  # fmt: skip

    @rule("simple", 1.5, "arrays")
    def change_array(self) -> None:
        name = self.name("array")
        self.line(f"{name} = ({self.var('tensor')} * 1).detach().numpy()")
        self.line(self.one(f"{name} += 1", f"{name}[0] = 2", f"{name}[:, 1:] *= 3", f"numpy.abs({name}, out={name})"))
        self.line(
            self.one(
                f"log.append({name}.shape)", f"log.append({name}.sum().dtype)", f"log.append({name}.dtype)", "pass"
            )
        )
        self.bind("tensor", f"torch.from_numpy({name})")

    # What outlives a call: references, results that are remembered, keys.

    @rule("tensor", 3, "references")
    def tensor_of_reference(self, d: int) -> str:
        t, i = self.some("tensor", d), self.some("int", 0)
        return self.one(
            "weakref.ref(KEPT)().value", f"({t} * weakref.ref({t}.shape and KEPT)().value.sum())", f"({t} + table(3))",
            f"Remembering({i}).by({t})", f"KEEPER.by({t})", f"(KEEPER.by({t}, n=3) - KEEPER.by({t}, n=3))", f"({t} * table(2)[1])",
            f"{{Nested(Frozen({i}), 1): {t}}}[Nested(Frozen({i}), 1)]", f"({t} + KEEPER.shown(3)[0])",
        )  # fmt: skip

    @rule("simple", 1.5, "references")
    def reference(self) -> None:
        i = self.some("int", 0)
        self.line(
            self.one(
                "log.append(weakref.ref(KEPT)() is KEPT)", f"log.append(KEEPER.counted({i}))", "table.cache_clear()",
                f"log.append(Nested(Frozen({i}), (1, 2)) == Nested(Frozen(1), (1, 2)))", f"log.append(hash(({i}, Frozen(1))) == hash((1, Frozen(1))))",
                f"log.append({{Nested(Frozen({i})): 1}}.get(Nested(Frozen(1)), 0))", "log.append(table(3) is table(3))", f"KEEPER.start = {i}",
                "log.append(weakref.ref(KEPT) == weakref.ref(KEPT))",
            )
        )  # fmt: skip

    # Wrappers that the program makes.

    @rule("tensor", 3, "wrappers")
    def tensor_in_wrapper(self, d: int) -> str:
        t, u, i = f"{self.some('tensor', d)}.detach()", f"{self.var('tensor')}.detach()", self.some("int", 0)
        return self.one(
            f"Twin({t}, {t} + {i}).second", f"(Twin({t}, {t} * 2) * {i} + 1).first", f"(Twin({t}, {t}) - {u}.sum()).second",
            f"torch.relu(Twin({t} - 1, {t}, {i})).first", f"(Twin({t}, {t}) * Twin({t}, {t} + 1)).second", f"twins({t}).sin().first",
        )  # fmt: skip

    @rule("simple", 1.5, "wrappers")
    def made_wrapper(self) -> None:
        name, t, i = self.name("twin"), self.var("tensor"), self.some("int", 0)
        self.line(f"{name} = Twin({t}.detach() * 1, {t}.detach() + 1, {i})")
        self.line(self.one(f"{name}.mul_(2)", f"{name} = {name} + {i}", "pass", f"{name} = torch.tanh({name})"))
        self.line(
            self.one(
                f"log.append(({name}.tag, type({name}).__name__))", f"log.append({name}.shape)", f"log.append({name}.second)",
                f"log.append(isinstance({name}, Twin))", f"log.append({name}.first is {name}.first)", "print('twin')",
            )
        )  # fmt: skip
        self.bind("tensor", f"{name}.first")

    # Dual tensors.

    @rule("tensor", 3, "duals")
    def tensor_tangent(self, d: int) -> str:
        t, f, i = self.some("tensor", d), self.some("func", d), self.some("int", 0)
        return self.one(
            f"pushed({f}, {t}, {i})", f"pushed(lambda v: v * {t}.detach() + v.sin(), {t}, 2)", f"pushed(torch.tanh, {t}, {i})",
            f"pushed(lambda v: v.clone().mul_(v), {t}, {i})",
        )  # fmt: skip

    # Results that are written into tensors that are there.

    @rule("tensor", 3, "outs")
    def tensor_into_another(self, d: int) -> str:
        t, u = f"{self.some('tensor', d)}.detach()", f"{self.var('tensor')}.detach()"
        return self.one(
            f"torch.add({t}, {u}, out=torch.empty_like({t}))", f"torch.exp({t}, out=torch.empty(0, dtype={t}.dtype))",
            f"torch.mul({t}, 2, out=torch.empty(3, {t}.shape[0], dtype={t}.dtype).t())",
            f"torch.cat([{t}[:1], {t}[1:]], out=torch.zeros_like({t}))", f"torch.cumsum({t}, 0, out=torch.ones_like({t}))",
            f"torch.where({t} > 0, {t}, {u}, out=torch.empty_like({t}))",
        )  # fmt: skip

    @rule("simple", 2, "outs")
    def write_into_another(self) -> None:
        t, u = f"{self.var('tensor')}.detach()", f"{self.var('tensor')}.detach()"
        name, made = self.name("into"), self.name("made")
        self.line(
            f"{name} = {self.one(f'{t} * 1', f'({t} * 1)[:1]', f'torch.zeros_like({t})', f'{t}[:, :2]', 'torch.empty(0)')}"
        )
        self.line(
            self.one(
                f"{made} = torch.mul({name}, 3, out={name})", f"{made} = torch.neg({t}, out={name})", f"{made} = torch.sub({t}, {u}, out={name})",
                f"{made} = torch.sum({t}, 0, out={name})", f"{made} = torch.add({name}, 1, out={name}[:1])", f"{made} = torch.sin({name}, out={t})",
            )
        )  # fmt: skip
        self.line(
            self.one(f"log.append({made} is {name})", f"log.append({name})", f"log.append({name}.stride())", "pass")
        )

    # Operands of several dtypes and layouts.

    @rule("tensor", 4, "layouts")
    def tensor_of_layout(self, d: int) -> str:
        t, u, i = self.some("tensor", d), self.var("tensor"), self.some("int", 0)
        return self.one(
            f"spaced({t})", f"(spaced({t}) + {u}.t().contiguous().t())", f"({t} * {u}.to(torch.float16))", f"({t} + {u}.to(torch.int32))",
            f"torch.where({u} > 0, {t}, {i})", f"({t} - {u}.double()).to({t}.dtype)", f"({t} * spaced({u}[:1]))", f"({t} + ({u} > {i}))",
            f"torch.cat([{t}.bfloat16(), {u}])[:{t}.shape[0]]", f"({t} + torch.tensor({i}, dtype=torch.uint8))", f"spaced({t}).t().t()",
            f"torch.ones_like(spaced({t}[:1])).expand({t}.shape)", f"spaced({t}).sum(0, keepdim=True).expand({t}.shape)",
            f"torch.maximum({t}, {u}.to({t}.dtype))", f"({t} @ spaced(torch.eye(3, dtype={t}.dtype)))",
        )  # fmt: skip

    @rule("simple", 1.5, "layouts")
    def write_to_layout(self) -> None:
        t, u, name = f"{self.var('tensor')}.detach()", f"{self.var('tensor')}.detach()", self.name("spaced")
        self.line(
            f"{name} = {self.one(f'spaced({t})', f'{t}.half()', f'({t} * 1).t()', f'{t}.int()', f'spaced({t}[:1])')}"
        )
        self.line(
            self.one(
                f"{name}.add_({self.one('1', 'True')})", f"{name}[0] = {self.some('int', 0)}", f"{name} *= 2", f"{name}.copy_({u}[:1, :1])",
                f"{name}.mul_({u}.sum())", f"{name}.clamp_(0)", f"{name}.zero_()",
            )
        )  # fmt: skip
        self.line(f"log.append(({name}.stride(), {name}.dtype, {name}.sum().dtype))")
        self.line(
            f"log.append({self.one(name, f'{name} + 1', f'{name}.clone().stride()', f'torch.empty_like({name}).stride()')})"
        )

    # Hooks that are removed again.

    @rule("simple", 3, "handles")
    def hook_and_remove(self) -> None:
        handle, name, t = self.name("handle"), self.name("hooked"), self.var("tensor")
        if self.chance(0.5):
            self.line(f"{name} = {t} * 2")
            self.line(f"{handle} = {name}.register_hook(lambda g: g * 3) if {name}.requires_grad else None")
        else:
            hook = self.one(
                "register_forward_hook(lambda m, a, r: r * 2)", "register_forward_pre_hook(lambda m, a: (a[0] + 1, *a[1:]))",
                "register_forward_hook(lambda m, a, r: log.append('hook'))", "register_forward_hook(lambda m, a, r: -r, prepend=True)",
            )  # fmt: skip
            self.line(f"{handle} = net.blocks[{self.one('0', '1')}].{hook}")
            self.line(f"{name} = net({t}{self.one('', ', skip=True')})")
        self.bound("tensor", name)
        self.statement()
        if self.chance(0.8):
            self.line(
                f"if {handle}: {handle}.remove()"
                if self.chance(0.7)
                else f"if {self.some('bool', 0)} and {handle}: {handle}.remove()"
            )
            self.line(self.one("log.append(len(net.blocks[0]._forward_hooks))", "pass"))

    # Autograd functions.

    @rule("tensor", 4, "functions")
    def tensor_of_function(self, d: int) -> str:
        t, u, i = self.some("tensor", d), self.var("tensor"), self.some("int", 0)
        return self.one(
            f"Both.apply({t}, {u}, {i})[0]", f"Both.apply({t}, {u}, {i})[1]", f"sum(Both.apply({t}, {u}, 2))", f"Marked.apply({t})[0]",
            f"({t} * Marked.apply({t})[1])", f"Passing.apply({t})", f"Doubled.apply({t} * 1)", f"Both.apply({t}, {t}, {i})[1]",
        )  # fmt: skip

    @rule("simple", 1.5, "functions")
    def call_function(self) -> None:
        one, other, t, u = self.name("one"), self.name("other"), self.var("tensor"), self.var("tensor")
        self.line(f"{one}, {other} = Both.apply({t}, {u}, {self.some('int', 0)})")
        self.line(
            self.one(
                f"log.append(({one}.requires_grad, {other}.requires_grad))", f"{one} = {one} * {other}", f"log.append({one}.grad_fn is None)",
                f"{other}.add_(1)", f"log.append(Marked.apply({one})[1].requires_grad)", f"log.append(Passing.apply({one}) is {one})",
            )
        )  # fmt: skip
        self.bound("tensor", one)
        self.bound("tensor", other)

    # States of ``random``.

    @rule("float", 3, "drawing")
    def float_drawn(self, d: int) -> str:
        i = self.random.randint(1, 3)
        return self.one(
            "random.random()", f"random.uniform(0, {i})", "DRAWS.random()", f"random.Random({i}).random()", "random.gauss(0, 1)",
            "(random.seed(3) or random.random())", f"float(random.choice([1, {i}]))", "DRAWS.gauss(0.0, 1.0)",
        )  # fmt: skip

    @rule("int", 1, "drawing")
    def int_drawn(self, d: int) -> str:
        return self.one(
            "random.randint(0, 3)", "DRAWS.randrange(4)", "random.getrandbits(2)", "random.choice([0, 1, 2])"
        )

    @rule("simple", 2, "drawing")
    def draw(self) -> None:
        items, name = self.var("list"), self.name("state")
        self.line(
            self.one(
                f"random.shuffle({items})", "DRAWS.seed(4)", f"log.extend(random.sample(range(9), {self.random.randint(0, 3)}))",
                f"{name} = random.getstate(); log.append(random.random()); random.setstate({name}); log.append(random.random())",
                f"{name} = DRAWS.getstate(); DRAWS.random(); DRAWS.setstate({name})", "random.seed('s')", "log.append(random.choices([1, 2], k=2))",
                "log.append(copy.copy(DRAWS).random())", f"log.append(random.Random({self.some('int', 0)}).randint(0, 99))", "DRAWS.shuffle(NAMES)",
            )
        )  # fmt: skip
