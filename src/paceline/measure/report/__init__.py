"""The report of a measurement: `report.json`, a page, a configuration, and gates on its figures."""
