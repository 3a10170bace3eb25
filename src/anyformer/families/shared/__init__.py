"""Config fields, templates and weight rules that several families share."""
