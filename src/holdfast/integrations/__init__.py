"""Callbacks for trainers: Lightning, Hugging Face's Trainer and accelerate.

Each module needs the trainer that it is named after; importing this package needs none.
"""
