"""The phone of `flower_app`. It imports little: Flower gives up on an app that takes half a minute to start."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

FOLDER = Path(os.environ["FLOWER_APP_FOLDER"])
client = ClientApp()


@client.query("client_id")
def client_id(message: Message, context: Context) -> Message:
    """Answer as docs/federated.md says, and write which node did."""
    with (FOLDER / "nodes").open("a") as file:
        file.write(f"{context.node_id}\n")
    found = ConfigRecord({"client-id": context.node_config["client-id"]})
    return Message(RecordDict({"config": found}), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    """Move the model by one clip norm and more, and write that it was asked."""
    with (FOLDER / "trained").open("a") as file:
        file.write(f"{context.node_id}\n")
    moved = {name: Array(array.numpy() + np.float32(9.0)) for name, array in message.content["arrays"].items()}
    content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 1.0})}
    return Message(RecordDict(content), reply_to=message)
