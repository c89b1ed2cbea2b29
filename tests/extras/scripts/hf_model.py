"""Models in the style of NVFlare's hello-huggingface."""

import torch

LORA_TARGET_MODULES = ["c_attn", "c_proj"]


class CausalLMModel(torch.nn.Module):
    def __init__(self, model_name_or_path):
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model_name_or_path)

    def state_dict(self, *args, **kwargs):
        return self.model.state_dict(*args, **kwargs)


class LoRAModel(torch.nn.Module):
    def __init__(self, model_name_or_path, lora_r=4):
        super().__init__()
        from peft import LoraConfig, TaskType, get_peft_model
        from transformers import AutoModelForCausalLM

        base_model = AutoModelForCausalLM.from_pretrained(model_name_or_path)
        peft_config = LoraConfig(
            r=lora_r,
            lora_alpha=16,
            lora_dropout=0.05,
            target_modules=LORA_TARGET_MODULES,
            fan_in_fan_out=True,
            task_type=TaskType.CAUSAL_LM,
        )
        self.model = get_peft_model(base_model, peft_config)

    def state_dict(self, *args, **kwargs):
        from peft import get_peft_model_state_dict

        return get_peft_model_state_dict(self.model)


class PrefixedModel(torch.nn.Module):
    """As in llm_hf: its names have the prefix that the script takes off and puts on."""

    def __init__(self, model_name_or_path):
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model_name_or_path)
