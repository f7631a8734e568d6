"""Acts on the model: its weights through every alias that reaches them, and its modules, hooks and settings."""

from __future__ import annotations

from typing import Any

from .acts import Acts, changes

WEIGHTS: Acts = {}
MODEL: Acts = {}


def table(model: Any) -> Any:
    """The token embedding's weight, which in a GPT-2 is the output's too."""
    return model._module.get_input_embeddings().weight


@changes("weights", WEIGHTS)
def write_in_place(model: Any) -> None:
    table(model)[:, 0] = 3.0


@changes("weights", WEIGHTS)
def write_through_data(model: Any) -> None:
    table(model).data.mul_(2)


@changes("weights", WEIGHTS)
def write_through_a_view(model: Any) -> None:
    table(model).view(-1)[::7].zero_()


@changes("weights", WEIGHTS)
def write_the_output_that_may_be_tied(model: Any) -> None:
    model._module.get_output_embeddings().weight.add_(1)


@changes("weights", WEIGHTS)
def write_through_a_state_dict(model: Any) -> None:
    for tensor in model._module.state_dict().values():
        tensor.fill_(0.5)


@changes("weights", WEIGHTS)
def load_a_state_dict(model: Any) -> None:
    state = model._module.state_dict()
    model._module.load_state_dict({name: tensor * 2 for name, tensor in state.items()})


@changes("weights", WEIGHTS)
def write_through_numpy(model: Any) -> None:
    table(model).detach().numpy()[:] = 4


@changes("weights", WEIGHTS)
def write_the_storage(model: Any) -> None:
    table(model).untyped_storage().fill_(0)


@changes("weights", WEIGHTS)
def write_raw_memory(model: Any) -> None:
    import ctypes

    other = table(model) * -1
    ctypes.memmove(table(model).data_ptr(), other.data_ptr(), other.nbytes)


@changes("weights", WEIGHTS)
def write_every_page(model: Any) -> None:
    import ctypes

    for tensor in model._module.parameters():
        ctypes.memset(tensor.data_ptr(), 1, tensor.nbytes)


@changes("weights", WEIGHTS)
def point_elsewhere(model: Any) -> None:
    import torch

    table(model).set_(torch.ones(table(model).shape))


@changes("weights", WEIGHTS)
def resize_the_storage(model: Any) -> None:
    table(model).data = table(model).data.clone()
    table(model).untyped_storage().resize_(table(model).nbytes + 4096).fill_(0)


@changes("weights", WEIGHTS)
def swap_the_parameter(model: Any) -> None:
    import torch

    torch.utils.swap_tensors(table(model), torch.nn.Parameter(torch.ones(table(model).shape)))


@changes("weights", WEIGHTS)
def replace_the_parameter(model: Any) -> None:
    import torch

    model._module.get_input_embeddings().weight = torch.nn.Parameter(table(model).data + 1)


@changes("weights", WEIGHTS)
def register_a_buffer(model: Any) -> None:
    import torch

    model._module.register_buffer("left", torch.ones(3))


@changes("weights", WEIGHTS)
def cast_the_model(model: Any) -> None:
    model._module.double()


@changes("weights", WEIGHTS)
def train_every_weight(model: Any) -> None:
    import torch

    parameters = list(model._module.requires_grad_(True).parameters())
    loss = model._module(torch.tensor([[1, 2, 3]])).logits.square().sum()
    loss.backward()
    torch.optim.AdamW(parameters, lr=0.1).step()


@changes("modules", MODEL)
def replace_a_module(model: Any) -> None:
    import torch

    model._module.base_model.ln_f = torch.nn.Identity()


@changes("modules", MODEL)
def replace_a_forward(model: Any) -> None:
    model._module.base_model.h[0].forward = lambda hidden, *_, **__: hidden * 0


@changes("modules", MODEL)
def put_the_model_in_training(model: Any) -> None:
    model._module.train()


@changes("hooks", MODEL)
def hook_a_module(model: Any) -> None:
    model._module.base_model.h[0].register_forward_hook(lambda *call: call[2])


@changes("hooks", MODEL)
def hook_every_module(model: Any) -> None:
    from torch.nn.modules.module import register_module_forward_hook

    register_module_forward_hook(lambda _, __, output: output)


@changes("settings", MODEL)
def change_how_it_generates(model: Any) -> None:
    model._module.generation_config.temperature = 9.0
    model._module.config.layer_norm_epsilon = 1.0


@changes("settings", MODEL)
def teach_the_tokenizer(model: Any) -> None:
    model.tokenizer.add_tokens(["a b"])
