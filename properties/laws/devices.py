"""Laws of devices, asked without a second one."""

from __future__ import annotations

from properties.case import Case
from properties.elsewhere import watching
from properties.property import Property
from properties.subject import Broken, Subject


def what_is_made_is_made_where_x_is(subject: Subject, case: Case) -> None:
    """A mask, a table or a draw that a call makes for itself lies on the device of x, not on the one that is the default.

    On a machine with a single device they are the same, and every number is right. Elsewhere the call raises.
    """
    layer, inputs = subject.start(case)
    for training in (False, True):
        layer(inputs, training=training)
        with watching(layer) as (mode, run):
            try:
                run(inputs, training)
            except Broken:
                return  # it runs, as was just seen, and cannot be watched
        if mode.met:
            raise AssertionError(mode.met[0])


PROPERTIES = (Property(law=what_is_made_is_made_where_x_is, needs=("any_device",)),)
