# %% [markdown]
# # Transformers: a small encoder and a small GPT
#
# The models of the `transformers` package are ordinary PyTorch modules. This notebook trains two small ones from random weights, so
# nothing is downloaded: an encoder that classifies, and a GPT that learns to count. It also shows tied weights on a pipeline, and a
# product that is computed in parts.
#
# It needs `pip install transformers`.

# %%
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

warnings.simplefilter("ignore")  # Many warnings of the package are irrelevant here.
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu import emulator  # noqa: E402
from poptorch_emu.emulator import show  # noqa: E402

STEPS = 150  # in the tests: 10
GPT_STEPS = 120  # in the tests: 10
TRAINED = True  # in the tests: False
VOCABULARY, LENGTH = 32, 12
poptorch.setLogLevel("ERR")  # The package's integer buffers become constants, with a warning each.

# %% [markdown]
# ## An encoder that classifies
#
# The task is artificial: does the token 1 occur more often than the token 2? The package's model computes its own loss when it gets
# labels. PopTorch must know which of the outputs is the loss, so `poptorch.identity_loss` marks it.


# %%
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = BertForSequenceClassification(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=96,
                max_position_embeddings=LENGTH,
                num_labels=2,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )

    def forward(self, tokens, labels=None):
        result = self.model(input_ids=tokens, labels=labels)
        if labels is None:
            return result.logits
        return result.logits, poptorch.identity_loss(result.loss, "none")


def sentences(count):
    tokens = torch.randint(1, 5, (count, LENGTH))
    return tokens, ((tokens == 1).sum(1) > (tokens == 2).sum(1)).long()


torch.manual_seed(0)
model = Classifier()
options = poptorch.Options().showCompilationProgressBar(False)
training = poptorch.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=2e-3))
losses = [training(*sentences(64))[1].item() for _ in range(STEPS)]
training.destroy()

inference = poptorch.inferenceModel(model.eval(), options)
tokens, labels = sentences(512)
accuracy = (inference(tokens).argmax(1) == labels).float().mean().item()
inference.destroy()
print(f"loss {losses[0]:.3f} at the beginning, {losses[-1]:.3f} at the end")
print(f"accuracy on 512 new sentences: {accuracy:.1%}")
assert accuracy > 0.8 or not TRAINED

# %% [markdown]
# ## A GPT on a pipeline
#
# GPT-2 uses one matrix twice: as the embedding of the tokens and as the last layer. These are *tied weights*. On a pipeline both uses must be on
# the same IPU. So the model goes in a circle: the embedding is on IPU 0, the layers on IPU 1, and the last layer is on IPU 0
# again. Three stages, two IPUs.


# %%
class Counter(nn.Module):
    def __init__(self, parts=1):
        super().__init__()
        self.gpt = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=48,
                n_layer=2,
                n_head=4,
                n_positions=LENGTH,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        poptorch.BeginBlock(self.gpt.transformer.wte, "embedding")
        poptorch.BeginBlock(self.gpt.transformer.h[0], "layers")
        self.parts = parts

    def forward(self, tokens, labels=None):
        x = self.gpt.transformer(tokens).last_hidden_state
        with poptorch.Block("head"):
            scores = self.product(x, self.gpt.lm_head.weight.t())
            if labels is None:
                return scores
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            return scores, loss

    def product(self, x, matrix):
        mode = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(x, matrix, mode, self.parts)


def make_strategy():
    return poptorch.PipelinedExecution(
        poptorch.Stage("embedding").ipu(0),
        poptorch.Stage("layers").ipu(1),
        poptorch.Stage("head").ipu(0),
    )


def counting(rows):
    """Returns rows that count up from a random number with a random step of 1 to 3, and their next tokens."""
    start = torch.randint(VOCABULARY, (rows, 1))
    step = torch.randint(1, 4, (rows, 1))
    numbers = (start + step * torch.arange(LENGTH + 1)) % VOCABULARY
    return numbers[:, :-1].contiguous(), numbers[:, 1:].contiguous()


def train(parts):
    """Returns a trained model and its losses; shows the schedule."""
    torch.manual_seed(0)
    model = Counter(parts)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(6)
    options.setExecutionStrategy(make_strategy())
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=3e-3)
    training = poptorch.trainingModel(model, options, optimizer)
    losses = [training(*counting(6 * 16))[1].item() for _ in range(GPT_STEPS)]
    if parts == 1:
        schedule = emulator.schedule(training)
        schedule.plot()
        show(schedule)
    training.destroy()
    return model, losses


gpt, losses = train(parts=1)
plt.figure(figsize=(6, 2.4))
plt.plot(losses)
plt.xlabel("update")
plt.ylabel("loss")
show()

# %% [markdown]
# After training, both uses still share one matrix:

# %%
print("tied:", gpt.gpt.lm_head.weight is gpt.gpt.transformer.wte.weight)
assert gpt.gpt.lm_head.weight is gpt.gpt.transformer.wte.weight

# %% [markdown]
# ## Let it count
#
# A program has fixed shapes. So we always pass a full row, and read the score where the known part ends.

# %%
options = poptorch.Options().showCompilationProgressBar(False)
options.deviceIterations(3)
options.setExecutionStrategy(make_strategy())
inference = poptorch.inferenceModel(gpt.eval(), options)
rows = torch.zeros(3, LENGTH, dtype=torch.long)
rows[:, :3] = torch.tensor([[5, 6, 7], [10, 12, 14], [1, 4, 7]])
for known in range(3, LENGTH):
    rows[:, known] = inference(rows)[:, known - 1].argmax(dim=1)
inference.destroy()
for row in rows.tolist():
    print(*row[:3], "->", *row[3:])
steps = torch.tensor([[1], [2], [3]])
right = ((rows[:, 3:] - rows[:, 2:-1] - steps) % VOCABULARY == 0).float().mean().item()
print(f"{right:.0%} of the steps are right")
assert right > 0.7 or not TRAINED

# %% [markdown]
# ## The last product in parts
#
# The last layer of a real language model is very wide: tens of thousands of tokens. `poptorch.serializedMatMul` computes it in parts, one
# after the other, each with less memory for its operands. The result is the same.

# %%
_, in_parts = train(parts=4)
furthest = max(abs(a - b) for a, b in zip(losses, in_parts))
print(f"The losses with four parts differ by at most {furthest:.1e}.")
assert furthest < 1e-2
poptorch.setLogLevel("WARN")

# %% [markdown]
# Next: [custom operators](../custom_operators/custom_operators.ipynb).
