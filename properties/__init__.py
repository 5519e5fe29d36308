"""What every correct attention obeys, and the machinery to run it on anyone's attention."""

from properties.case import Case, cases
from properties.inputs import Inputs, Weights, make_inputs
from properties.laws import PROPERTIES
from properties.oracle import attend
from properties.property import Property
from properties.runner import Counterexample, check, failure, falsify
from properties.subject import Layer, Result, Subject, Supports, of_module

__all__ = [
    "PROPERTIES",
    "Case",
    "Counterexample",
    "Inputs",
    "Layer",
    "Property",
    "Result",
    "Subject",
    "Supports",
    "Weights",
    "attend",
    "cases",
    "check",
    "failure",
    "falsify",
    "make_inputs",
    "of_module",
]
