"""What every correct attention obeys, and the machinery to run it on anyone's attention."""

from properties.case import Case, cases
from properties.conformance import check_attention, replay
from properties.inputs import Inputs, Weights, make_inputs
from properties.laws import PROPERTIES
from properties.oracle import attend
from properties.property import Property
from properties.report import Finding, Report
from properties.runner import Counterexample, check, failure, falsify
from properties.subject import Layer, Result, Subject
from properties.supports import Supports
from properties.wrap import Caching, black_box, of_class, of_function, of_module

__all__ = [
    "PROPERTIES",
    "Caching",
    "Case",
    "Counterexample",
    "Finding",
    "Inputs",
    "Layer",
    "Property",
    "Report",
    "Result",
    "Subject",
    "Supports",
    "Weights",
    "attend",
    "black_box",
    "cases",
    "check",
    "check_attention",
    "failure",
    "falsify",
    "make_inputs",
    "of_class",
    "of_function",
    "of_module",
    "replay",
]
