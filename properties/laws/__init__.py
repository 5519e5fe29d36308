"""The laws that every correct attention obeys, one family a module."""

from properties.laws import (
    algebra,
    batch,
    causality,
    contract,
    decoding,
    dependence,
    derivatives,
    devices,
    dropout,
    graphs,
    heads,
    masking,
    modes,
    positions,
    precision,
    reference,
    rows,
    symmetry,
    tools,
    training,
    variants,
)
from properties.property import Property

PROPERTIES: tuple[Property, ...] = tuple(
    property_
    for family in (
        reference,
        rows,
        symmetry,
        masking,
        causality,
        batch,
        heads,
        algebra,
        dependence,
        derivatives,
        positions,
        decoding,
        variants,
        modes,
        dropout,
        contract,
        devices,
        precision,
        tools,
        graphs,
        training,
    )
    for property_ in family.PROPERTIES
)
