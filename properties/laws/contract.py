"""Laws of the interface: what comes back, what may be passed in, and what must be left alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from properties.case import HIDING, Case
from properties.compare import assert_close
from properties.inputs import make_inputs
from properties.laws.symmetry import CROSS, WITHOUT_FLAG
from properties.property import Property
from properties.subject import Subject
from properties.surroundings import RandomState


def the_result_has_the_shape_of_the_question(subject: Subject, case: Case) -> None:
    """The output is [B, T, d], the weights [B, h, T, S], both of the dtype and on the device of x.

    Every call of every law checks it; here it is all that is asked.
    """
    layer, inputs = subject.start(case)
    layer(inputs)


def one_query_and_one_key_work(subject: Subject, case: Case) -> None:
    """A single query with a single key is no special case."""
    layer, inputs = subject.start(case)
    layer(replace(inputs, mask=None, is_causal=False).first(1, 1))


def a_batch_of_none_works(subject: Subject, case: Case) -> None:
    """A batch without samples gives a result without samples, of the right shape."""
    layer, inputs = subject.start(case)
    result = layer(replace(inputs, mask=None).rows(torch.arange(0)))
    if subject.supports.weights:
        result.need_weights()


def no_queries_get_no_rows(subject: Subject, case: Case) -> None:
    """A sequence without tokens that asks another one gets a result without rows, and weights without rows."""
    layer, inputs = subject.start(case)
    if inputs.square or case.T == 1:
        return  # what takes one length for the other shows where there are two; and one query is repeated where none is not
    result = layer(inputs.take_queries(torch.arange(0)))
    if subject.supports.weights:
        result.need_weights()


def strides_do_not_matter(subject: Subject, case: Case) -> None:
    """Tokens of equal numbers give equal results, however they lie in memory."""
    layer, inputs = subject.start(case)
    bound = subject.rounding(case).output
    want = layer(inputs.laid_out("contiguous")).output
    assert_close(layer(inputs).output, want, bound, f"output for {case.layout} tokens", subject.judged(inputs)[..., None])


def nothing_passed_in_is_changed(subject: Subject, case: Case) -> None:
    """Tokens, mask and weights are after a call what they were before it, in evaluation and in training, in every dtype.

    A conversion that copies in one dtype hands back the caller's own tensor in another.
    """
    for dtype in subject.supports.dtypes:
        inputs = make_inputs(case, getattr(torch, dtype))
        layer = subject.layer(inputs)
        before = {name: tensor.clone() for name, tensor in inputs.tensors().items()}
        for training in (False, True):
            layer(inputs, training=training)
            for name, tensor in inputs.tensors().items():
                assert_close(tensor.to(torch.float64), before[name].to(torch.float64), 0.0, f"{name} after the call, in {dtype},")


def nothing_around_it_is_changed(subject: Subject, case: Case) -> None:
    """A call leaves torch's settings and everybody's random numbers as they were; dropout draws from them, and seeds none.

    A seed set inside makes dropout the same in every step, and with it all that is drawn anywhere after.
    """
    layer, inputs = subject.start(case)
    left = []
    for seed in (case.seed + 1, case.seed + 2):  # two: one could be the very seed that is set inside
        torch.default_generator.manual_seed(seed)
        before = RandomState.now()
        layer(inputs, watched=True)
        layer(inputs, grad=subject.supports.gradients, watched=True)
        if changed := before.changed():
            raise AssertionError(f"in evaluation {' and '.join(changed)} global random numbers were used, or seeded")
        layer(inputs, training=True, watched=True)
        left.append(torch.get_rng_state())
    if torch.equal(*left):
        raise AssertionError("in training it seeds torch's global random numbers: they are the same after, whatever they were")


def a_second_call_gives_the_same(subject: Subject, case: Case) -> None:
    """A layer keeps nothing of a call: the same inputs give the same again, and the same after any others."""
    layer, inputs = subject.start(case)
    bound, judged = subject.rounding(case), subject.judged(inputs)[..., None]
    first = layer(inputs)
    used = subject.layer(inputs)
    used(replace(inputs, x=-inputs.x, mask=None if inputs.mask is None else _nothing_hidden(inputs.mask)))
    used(inputs, training=True)
    for later, when in ((layer, "in the second call"), (used, "after other calls")):
        result = later(inputs)
        assert_close(result.output, first.output, bound.output, f"output {when}", judged)
        if first.weights is not None:
            some = inputs.visible().any(-1, keepdim=True)
            assert_close(result.need_weights(), first.weights, bound.weights, f"weights {when}", some)


def a_result_outlives_the_next_call(subject: Subject, case: Case) -> None:
    """What a call has returned stays what it is when the layer is called again, on other tokens of the same sizes.

    A layer that writes into memory it keeps hands out the same memory every time. To compare two of its results is then to
    compare one with itself: laws that keep a result for later are blind to it.
    """
    layer, inputs = subject.start(case)
    context = None if inputs.context is None else 2 * inputs.context
    first = layer(inputs)
    output, weights = first.output.clone(), None if first.weights is None else first.weights.clone()
    layer(replace(inputs, x=2 * inputs.x, context=context))  # not -1 times: of two minus signs the weights see none
    assert_close(first.output, output, 0.0, "output, after another call,")
    if first.weights is not None and weights is not None:
        assert_close(first.weights, weights, 0.0, "weights, after another call,")


def mask_and_flag_are_for_one_call(subject: Subject, case: Case) -> None:
    """A call without a mask and without the causal flag is one, also after a call with them."""
    layer, inputs = subject.start(case)
    unmasked = replace(inputs, mask=None, is_causal=False)
    bound = subject.bounds(unmasked).output
    other = subject.layer(inputs)
    other(unmasked)  # so that what changes from call to call is changed in both
    layer(inputs)
    want = other(unmasked).output
    assert_close(layer(unmasked).output, want, bound, "output without a mask, after one with")


def one_layer_serves_all_sizes(subject: Subject, case: Case) -> None:
    """A layer that has served one size serves another as a fresh one does: fewer tokens after more, and more after fewer.

    A mask kept from the first call, and cut to size or not, is the usual way to get this wrong.
    """
    layer, inputs = subject.start(case)
    if case.keys is not None:
        rows = inputs.aligned_queries(1)
        fewer = inputs.take_queries(rows)
    else:
        rows = torch.arange(max(1, case.T - 1))
        fewer = inputs.take_tokens(rows)
    empties = fewer.attending().all() != inputs.attending().all()  # a query may have lost the only key it saw
    if fewer.square != inputs.square or empties:
        return
    bound = subject.rounding(case).output
    want, after_more = layer(inputs).output, layer(fewer).output
    other = subject.layer(inputs)
    after_nothing, after_fewer = other(fewer).output, other(inputs).output
    judged = subject.judged(fewer)[..., None]
    assert_close(after_more, after_nothing, bound[:, rows], "output for fewer tokens after more", judged)
    assert_close(after_fewer, want, bound, "output for more tokens after fewer", subject.judged(inputs)[..., None])


def parameters_are_those_of_the_formula(subject: Subject, case: Case) -> None:
    """The module has the parameters it names, of their shapes, finite and open to training, and no others."""
    layer, inputs = subject.start(case)
    loaded = layer.need_module()
    want = {name: list(tensor.shape) for name, tensor in loaded.parameters(inputs.weights).items()}
    own = dict(loaded.module.named_parameters())
    for name, parameter in own.items():
        shape = list(parameter.shape)
        if name not in want:
            raise AssertionError(f"it has a parameter {name} {shape} that `parameters` does not name: one too many, or forgotten")
        if shape != want[name]:
            raise AssertionError(f"its parameter {name} has shape {shape}, the formula has {want[name]}")
        if not parameter.requires_grad or not parameter.isfinite().all():
            raise AssertionError(
                f"its parameter {name} is {'not finite' if parameter.requires_grad else 'shut off from training'}"
            )


def a_state_dict_carries_everything(subject: Subject, case: Case) -> None:
    """Another layer that loads the state dict computes the same: nothing that matters is kept elsewhere."""
    layer, inputs = subject.start(case)
    other = subject.layer(inputs)
    layer(inputs)  # what is saved after a call loads into a layer that has not been called
    layer.need_module().load(inputs.weights)
    other.need_module().module.load_state_dict(layer.need_module().module.state_dict())
    bound = subject.rounding(case).output
    want, got = layer(inputs).output, other(inputs, stored=True).output
    assert_close(got, want, bound, "output of the layer that loaded the state dict", subject.judged(inputs)[..., None])


def _nothing_hidden(mask: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)


PROPERTIES = (
    Property(law=the_result_has_the_shape_of_the_question),
    Property(law=one_query_and_one_key_work),
    Property(law=a_batch_of_none_works),
    Property(
        law=no_queries_get_no_rows,
        needs=("empty_sequences", "unordered"),
        where={"keys": CROSS, "mask": WITHOUT_FLAG},
    ),
    Property(law=strides_do_not_matter, where={"layout": ("transposed", "strided")}),
    Property(law=nothing_passed_in_is_changed),
    Property(law=nothing_around_it_is_changed),
    Property(law=a_second_call_gives_the_same),
    Property(law=a_result_outlives_the_next_call),
    Property(law=mask_and_flag_are_for_one_call, needs=("does_without_a_mask",), where={"mask": HIDING}),
    Property(law=one_layer_serves_all_sizes),
    Property(law=parameters_are_those_of_the_formula, needs=("loads_weights", "module")),
    Property(law=a_state_dict_carries_everything, needs=("loads_weights", "module")),
)
