"""The laws that every correct attention obeys, one family a module."""

from properties.laws import (
    algebra,
    batch,
    causality,
    contract,
    dependence,
    graphs,
    heads,
    masking,
    modes,
    precision,
    reference,
    rows,
    symmetry,
    tools,
    training,
)
from properties.property import Property

PROPERTIES: tuple[Property, ...] = tuple(
    property_
    for family in (
        *(reference, rows, symmetry, masking, causality, batch, heads, algebra, dependence, modes, contract, precision),
        *(tools, graphs, training),
    )
    for property_ in family.PROPERTIES
)
