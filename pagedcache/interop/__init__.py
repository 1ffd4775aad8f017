"""The cache inside other frameworks; each module here needs the framework that it is named after."""
