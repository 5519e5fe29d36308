"""Laws of what training begins with: parameters as they are built, and that a gradient reaches each of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from properties.case import Case
from properties.inputs import Weights, gradients, make_inputs
from properties.property import Property
from properties.subject import LoadedModule, Subject

LARGE = Case(
    queries=64, num_heads=4, d_head=16
)  # large enough for the spread of random numbers to be near what they are drawn by


def every_parameter_learns(subject: Subject, case: Case) -> None:
    """A gradient reaches every row and every column of every weight matrix, where every head has a choice to make.

    It is looked for at the parameters themselves, where an optimiser looks for it. What is computed by another projection, by a
    copy or by bare data leaves its own as it was built.
    """
    layer, module, inputs = subject.loaded(case)
    judged = subject.judged(inputs)
    if subject.supports.qk_norm and case.d_head == 1:
        return  # a head of one feature is 1 or -1 when it is normalised, and nothing but the epsilon lets a gradient past
    chosen = (inputs.visible().sum(-1) > 1) & judged[:, None]
    if not chosen.any(-1).any(0).all() or (not judged.all() and not subject.supports.finite_empty_rows):
        return
    cotangent = torch.randn(inputs.x.shape, generator=case.generator("law"), dtype=torch.float64) * judged[..., None]
    carried = _carried(layer.need_module(), inputs.weights, subject.supports.loads_weights)
    matrices: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.dim() > 1 and name in carried}
    if not matrices:
        return
    for name, gradient in gradients(layer(inputs, grad=True).output, cotangent, matrices).items():
        reached, own = (gradient != 0).flatten(1), (carried[name] != 0).flatten(1)
        for axis, what in ((1, "row"), (0, "column")):
            if (untouched := own.any(axis) & ~reached.any(axis)).any():
                raise AssertionError(f"no gradient reaches {what} {int(untouched.nonzero()[0])} of {name} {list(gradient.shape)}")


def _carried(loaded: LoadedModule, weights: Weights, known: bool) -> Mapping[str, Tensor]:
    """Where in each parameter there are weights that something has to reach.

    Of a black box, everywhere but in biases; yet where rows of a matrix are zero, as some are at first, they may keep gradients
    from others.
    """
    if known:
        # Some rows of a table are for distances that are not here; and the softmax does not see the bias of the keys.
        none = {name: torch.zeros_like(weight) for name, weight in weights.items() if name in ("table", "b_k")}
        return loaded.parameters(replace(weights.map(torch.ones_like), **none))
    own = dict(loaded.module.named_parameters())
    if any((parameter.flatten(1) == 0).all(1).any() for parameter in own.values() if parameter.dim() > 1):
        return {}
    return {name: torch.ones_like(parameter) for name, parameter in own.items() if "bias" not in name}


def projections_start_apart(subject: Subject, case: Case) -> None:
    """As built, no projection is all one number, no two are alike, and no two heads of one are.

    What starts alike gets like gradients and learns alike. Only the output projection may be zero: some start it so on purpose,
    for the layer to begin as if it were not there.
    """
    layer, inputs = subject.start(case)
    own = _as_built(layer.need_module(), inputs.weights)
    if own is None:
        return
    matrices = {name: weight for name, weight in own.items() if name.startswith("w_")}
    for name, weight in matrices.items():
        alike = bool((weight == weight.flatten()[0]).all())
        zero = alike and bool((weight == 0).all())
        if (alike and weight.numel() > 1 and not (zero and name == "w_o")) or (zero and name != "w_o"):
            raise AssertionError(f"as built, every number of {name} is {float(weight.flatten()[0]):.9g}")
    for (name, weight), (other, its) in itertools.combinations(matrices.items(), 2):
        if torch.equal(weight, its):
            raise AssertionError(f"as built, {name} and {other} are equal")
    for name in ("w_q", "w_k", "w_v"):
        heads = matrices[name].unflatten(0, (-1, inputs.d_head))
        for one, other_head in itertools.combinations(range(len(heads)), 2):
            if torch.equal(heads[one], heads[other_head]):
                raise AssertionError(f"as built, heads {one} and {other_head} of {name} are equal")


def scores_start_in_reach(subject: Subject, case: Case) -> None:
    """As built, for standard normal tokens, the scores over S keys spread by no more than sqrt(2 ln S): the softmax is not stuck.

    Weights of normally distributed scores that spread further gather on a few keys, however many there are (Derrida 1981), and
    the gradient of a softmax that has decided is nearly zero. A row of a projection that keeps the size of a token gives scores
    that spread by 1; Xavier's initialisation by at most that, Kaiming's by 2, with a limit of 2.9 for the 64 keys here.
    The layer is one of its own, 4 heads of 16, whatever the case: in a small one chance decides.
    """
    inputs = replace(make_inputs(LARGE.with_mechanisms_of(case), subject.dtype), dropout=case.dropout)
    own = _as_built(subject.layer(inputs).need_module(), inputs.weights)
    if own is None:
        return
    q, k, _ = replace(inputs, weights=own).projected()
    spread = float(((q @ k.mT) * LARGE.d_head**-0.5).var(-1).mean().sqrt())
    limit = math.sqrt(2 * math.log(LARGE.S))
    if not spread <= limit:
        raise AssertionError(f"as built, scores of standard normal tokens spread by {spread:.3g}, should be at most {limit:.3g}")


def a_reset_reaches_every_parameter(subject: Subject, case: Case) -> None:
    """`reset_parameters()` of a module, and of those in it, gives every parameter a new value.

    It is how a layer that was built without memory, on the meta device, gets its first values.
    """
    layer, _ = subject.start(case)
    module = layer.need_module().module
    resetting = [part for part in module.modules() if callable(getattr(part, "reset_parameters", None))]
    reset = {id(parameter) for part in resetting for parameter in part.parameters()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    for part in reversed(resetting):  # from the inside, so that those around have the last word
        part.reset_parameters()  # type: ignore[operator]
    for name, parameter in module.named_parameters():
        if id(parameter) in reset and not parameter.isfinite().all():
            raise AssertionError(f"reset_parameters() leaves {name} as it was")


def _as_built(module: LoadedModule, like: Weights) -> Weights | None:
    """The parameters of the module as weights; None if they are not the same numbers in some order.

    Weights that are numbered through show where each of them goes.
    """
    total = 1

    def number(weight: Tensor) -> Tensor:
        nonlocal total
        total += weight.numel()
        return torch.arange(total - weight.numel(), total, dtype=torch.float64).reshape(weight.shape)

    numbered = like.map(number)
    values = torch.full((total,), torch.nan, dtype=torch.float64)
    own = dict(module.module.named_parameters())
    for name, places in module.parameters(numbered).items():
        if name not in own or own[name].shape != places.shape or not torch.equal(places, places.round()):
            return None
        values[places.long().flatten()] = own[name].detach().to(torch.float64).flatten()
    values[0] = 0.0  # of a bias that the formula does not have
    return None if values[1:].isnan().any() else numbered.map(lambda w: values[w.long()])


PROPERTIES = (
    Property(law=every_parameter_learns, needs=("module", "all_read", "gradients", "fine_dtype")),
    Property(law=projections_start_apart, needs=("module", "initialises", "loads_weights")),
    Property(law=scores_start_in_reach, needs=("module", "initialises", "loads_weights", "any_heads")),
    Property(law=a_reset_reaches_every_parameter, needs=("module", "initialises")),
)
