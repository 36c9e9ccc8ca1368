"""The examples of the documents on frameworks, and those of `examples/integrations`."""
