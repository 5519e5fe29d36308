"""The laws that every correct attention obeys, one family a module."""

from properties.laws import (
    algebra,
    batch,
    causality,
    contract,
    dependence,
    derivatives,
    dropout,
    heads,
    masking,
    modes,
    precision,
    reference,
    rows,
    symmetry,
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
        modes,
        dropout,
        contract,
        precision,
    )
    for property_ in family.PROPERTIES
)
