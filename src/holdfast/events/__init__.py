"""The event files of a run: schema, writer, reader, and the model of a run made from them."""
