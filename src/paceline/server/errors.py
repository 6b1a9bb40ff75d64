"""Errors of streams, under the name by which answers know them."""

from paceline.administration.http_errors import error_body

__all__ = ["error_body"]
