"""What the documents of nvidia-resiliency-ext promise, as a table: one test per promise.

A row is named by its document and section, and by the promise in a sentence. Programs meet these
promises through the names that they import, so the rows do, too. A promise that holdfast does not
keep is *declared*: ``test_declared.py`` names the sentence of ``docs/from-nvrx.md`` that says what
holds instead.
"""
