"""Data of the study of learning rates: MNIST, digits, and what is made here: sequences, letters, mixtures and more."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch

from papers.leaderboard.accuracy_predictors import halved
from papers.leaderboard.made_table import made_table
from papers.reproductions.images import load_images

JUDGED_EXAMPLES = 3000
"""The training examples, and the test examples, by which a model is judged."""
SEQUENCES = {"sequences": (12, 16, 10), "long sequences": (16, 12, 12, 5), "plain sequences": (10, 8, 5, 3)}
SEQUENCES |= {"few symbols": (20, 4, 6, 6), "three symbols": (24, 3, 5, 8), "many symbols": (14, 20, 4, 5)}
"""The length, symbols, classes and length of the motif of sequences that are seen through windows."""
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def made_sequences(length: int, symbols: int, classes: int, motif: int = 4) -> Data:
    """Return sequences of symbols that hide the motif of their class, four fifths of it on average, one-hot."""
    luck, examples = np.random.default_rng(0), 43_000
    motifs = luck.integers(0, symbols, (classes, motif))
    labels = luck.integers(0, classes, examples)
    x = luck.integers(0, symbols, (examples, length))
    places = luck.integers(0, length - motif + 1, examples)
    for i in range(motif):
        kept = luck.random(examples) < 0.8
        x[np.arange(examples)[kept], (places + i)[kept]] = motifs[labels[kept], i]
    hot = np.eye(symbols, dtype=np.float32)[x]
    return parted(hot, labels, 40_000)


def next_letters(before: int = 4, apart: int = 9) -> Data:
    """Return letters of Python's own help texts, or a space, by the ones before them, one-hot."""
    text = re.sub("[^a-z]+", " ", " ".join(topics[name] for name in sorted(topics)).lower())
    letters = np.frombuffer(text.encode(), np.uint8) % 32  # a space is 0
    places = np.arange(before, len(letters), apart)
    hot = np.eye(27, dtype=np.float32)[letters[places[:, None] - np.arange(before, 0, -1)]]
    luck = np.random.default_rng(1).permutation(len(places))
    return parted(hot.reshape(len(places), 1, -1)[luck], letters[places][luck], len(places) - JUDGED_EXAMPLES)


def mixture(inputs: int = 30, classes: int = 8, parts: int = 3, examples: int = 33_000) -> Data:
    """Return a mixture of normal distributions, each class three of them, whose examples have a norm of about 1."""
    luck = np.random.default_rng(2)
    means = luck.normal(0, 0.5, (classes * parts, inputs))
    drawn = luck.integers(0, classes * parts, examples)
    x = (means[drawn] + luck.normal(size=(examples, inputs))) / (1.25 * inputs) ** 0.5
    return parted(x[:, None].astype(np.float32), drawn % classes, examples - JUDGED_EXAMPLES)


def teacher(inputs: int = 24, classes: int = 6, hidden: int = 16) -> Data:
    """Return normal inputs of a norm of about 1, each with the class that a network of random weights gives it."""
    luck = np.random.default_rng(4)
    x = luck.normal(size=(33_000, inputs))
    scores = np.tanh(x @ luck.normal(size=(inputs, hidden)) / 2) @ luck.normal(size=(hidden, classes))
    labels = (scores - np.median(scores, axis=0)).argmax(axis=1)
    return parted((x / inputs**0.5)[:, None].astype(np.float32), labels, 30_000)


def word_counts(words: int = 120, classes: int = 7, length: int = 25) -> Data:
    """Return counts of the words of made documents, whose frequencies are those of their class, with a norm of 1."""
    luck = np.random.default_rng(5)
    frequencies = luck.dirichlet(np.full(words, 0.5), classes)
    labels = luck.integers(0, classes, 33_000)
    x = luck.multinomial(length, 0.4 * frequencies[labels] + 0.6 * frequencies.mean(axis=0))
    return parted((x / np.linalg.norm(x, axis=1, keepdims=True))[:, None].astype(np.float32), labels, 30_000)


def waveforms() -> Data:
    """Return noisy mixtures of two of three triangular waves, of Breiman, Friedman, Olshen and Stone (CART, 1984)."""
    luck, at = np.random.default_rng(6), np.arange(21)
    waves = np.array([np.maximum(6 - np.abs(at - middle), 0) for middle in (6, 14, 10)])
    labels, share = luck.integers(0, 3, 33_000), luck.random((33_000, 1))
    x = share * waves[labels] + (1 - share) * waves[(labels + 1) % 3] + luck.normal(size=(33_000, 21))
    return parted((x / 15)[:, None].astype(np.float32), labels, 30_000)


def shells(inputs: int = 6, classes: int = 3) -> Data:
    """Return normal inputs, in classes of equal size by their norm."""
    x = np.random.default_rng(7).normal(size=(33_000, inputs))
    ranks = np.linalg.norm(x, axis=1).argsort().argsort()
    return parted((x / inputs**0.5)[:, None].astype(np.float32), ranks * classes // len(x), 30_000)


def hinges(inputs: int = 18, classes: int = 4, hidden: int = 12) -> Data:
    """Return inputs of a sphere, each with the class whose sum of random hinge functions is the largest."""
    luck = np.random.default_rng(8)
    x = luck.normal(size=(33_000, inputs))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    scores = np.maximum(x @ luck.normal(size=(inputs, hidden)), 0) @ luck.normal(size=(hidden, classes))
    labels = (scores - np.median(scores, axis=0)).argmax(axis=1)
    return parted(x[:, None].astype(np.float32), labels, 30_000)


MAKERS = {
    "teacher": teacher,
    "word counts": word_counts,
    "waveforms": waveforms,
    "shells": shells,
    "hinges": hinges,
}
"""The data that are made without numbers of one's own."""


def windows(x: torch.Tensor, width: int = 4) -> torch.Tensor:
    """Return the windows of neighbouring symbols as positions, from one-hot symbols and a constant."""
    count = x.shape[1] - width + 1
    return torch.cat([x[:, i : i + count, :-1] for i in range(width)] + [x[:, :count, -1:]], dim=2)


def parted(features: np.ndarray, labels: np.ndarray, train: int) -> Data:
    """Return training and test data as tensors, with a constant in the last column."""
    x = torch.cat([torch.as_tensor(features), torch.ones(*features.shape[:-1], 1)], dim=-1)
    y = torch.as_tensor(labels.astype(np.int64))
    return x[:train], y[:train], x[train:], y[train:]


@cache
def data_of(name: str, mnist: Path | None) -> Data:
    """Return training features (examples, positions, inputs) and labels, and those of the test."""
    if name in SEQUENCES:
        x, y, test, judged = made_sequences(*SEQUENCES[name])
        return windows(x), y, windows(test), judged
    if name in MAKERS:
        return MAKERS[name]()
    if name in ("short sequences", "brief sequences"):
        return made_sequences(*((8, 12, 8) if name == "short sequences" else (6, 9, 5, 3)))
    if name.endswith("text"):
        return next_letters(*{"long text": (7, 11), "short text": (2, 7)}.get(name, ()))
    if name.endswith("mixture"):
        return mixture(*{"broad mixture": (80, 5, 4), "narrow mixture": (15, 5, 2)}.get(name, ()))
    if name == "table":
        table = made_table()
        tensors = (table.train, table.train_labels, table.test, table.test_labels)
    else:
        images = load_images(None if name == "digits" else mnist, constant="whole" in name or name == "digits")
        images = halved(images) if name in ("mnist", "noisy mnist", "odd mnist") else images
        tensors = (images.train, images.train_labels, images.test, images.test_labels)
        if name == "odd mnist":
            tensors = (tensors[0], tensors[1] % 2, tensors[2], tensors[3] % 2)
        if name == "noisy mnist":
            luck = np.random.default_rng(3)
            wrong = luck.random(len(tensors[1])) < 0.2
            tensors = (tensors[0], np.where(wrong, luck.integers(0, 10, len(wrong)), tensors[1]), *tensors[2:])
    x, y, test, judged = (torch.as_tensor(one) for one in tensors)
    return x[:, None], y.long(), test[:, None], judged.long()
