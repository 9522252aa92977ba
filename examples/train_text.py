"""Train a small language model on documents that are packed into blocks. Tokens attend only to their own document.

The program generates documents, writes their tokens to text/, and trains with them.
"""

import numpy as np
import torch
from torch import nn

import shardtool
from shardtool.torch import loader

TOKENS, BATCH, WIDTH = 256, 8, 64
random = np.random.default_rng(0)
torch.manual_seed(0)


def document():
    """Return a document with a random number of sentences about two animals."""
    subject, target = random.choice(["ant", "bee", "cat", "dog", "elk", "fox"], 2, replace=False)
    verbs = random.choice(["sees", "hears", "likes"], min(20, int(random.lognormal(0.8, 0.8)) + 1))
    return " ".join(f"The {subject} {verb} the {target}." for verb in verbs)


with shardtool.ShardWriter("text/train-{000000..}.tar", max_count=500, overwrite=True) as writer:
    for number in range(2000):
        tokens = np.frombuffer(document().encode(), np.uint8)  # most tokenizers need uint16 or uint32
        writer.write({"__key__": f"{number:06}", "npy": tokens})


class Model(nn.Module):
    """A Transformer with two layers. A token attends to earlier tokens of the same document."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(TOKENS, WIDTH)
        layers = [nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True) for _ in range(2)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(WIDTH, 256)

    def forward(self, tokens, positions, segments):
        """Return logits [batch, token, 256] for blocks [batch, token]."""
        values = self.tokens(tokens) + self.positions(positions)
        # Each token ignores later tokens, other documents and padding.
        hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        hidden = hidden | (segments[:, :, None] != segments[:, None, :])
        for layer in self.layers:
            values = layer(values, src_mask=hidden.repeat_interleave(4, 0))
        return self.head(values)


packed = shardtool.open("text/train.json").pack(TOKENS, "npy")
blocks = loader(packed.fields("tokens", "positions", "segments"), BATCH, seed=0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for epoch in range(3):  # each epoch packs the documents into different blocks
    for block in blocks:
        tokens, segments = block["tokens"].long(), block["segments"]
        logits = model(tokens, block["positions"].long(), segments)
        # A prediction counts only if the next token belongs to the same document.
        counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        loss = nn.functional.cross_entropy(logits[:, :-1][counts], tokens[:, 1:][counts])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    full = (segments > 0).float().mean()
    print(f"epoch {epoch}: {len(blocks)} steps, loss {loss:.3f}, {full:.1%} of the last batch are tokens", flush=True)
