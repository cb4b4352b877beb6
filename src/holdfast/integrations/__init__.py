"""Callbacks for trainers: Lightning, Hugging Face's Trainer and accelerate.

Read first: ``lightning.py``; ``transformers.py`` and ``accelerate.py``, on
``_training_sections.py``. Snapshots: ``_trainer_snapshots.py``, ``_fit_snapshots.py``,
``_agreement.py``.

Each module needs the trainer that it is named after; importing this package needs none.
"""
