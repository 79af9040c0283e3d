"""Experiments."""

import streamlit as st


def show() -> None:
    """Draw the page."""
    st.title("Experiments")


if __name__ == "__main__":
    show()
