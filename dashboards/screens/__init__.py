"""The pages: each module has ``show``, which draws one page and holds no logic of its own.

The folder is not called ``pages``: beside its main script Streamlit takes such a folder for an older kind
of app.
"""
