"""Which known mistake is it? `python -m faults diagnose`."""

from faults.diagnosis.diagnosis import Diagnosis, diagnose, of_report

__all__ = ["Diagnosis", "diagnose", "of_report"]
