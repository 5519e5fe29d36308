"""The laws that every correct attention obeys, one family a module."""

from properties.laws import (
    algebra,
    batch,
    causality,
    contract,
    decoding,
    dependence,
    devices,
    heads,
    masking,
    modes,
    positions,
    precision,
    reference,
    rows,
    symmetry,
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
        positions,
        decoding,
        variants,
        modes,
        contract,
        devices,
        precision,
    )
    for property_ in family.PROPERTIES
)
