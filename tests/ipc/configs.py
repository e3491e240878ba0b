"""A complete ``EngineConfig`` for tests that need one but not its model."""

from engine.config import Architecture, CacheConfig, EngineConfig, ModelConfig, ModelSource, SchedulerConfig


def config_named(served_name: str) -> EngineConfig:
    architecture = Architecture(
        family="llama",
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position=256,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=True,
        sliding_window=None,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(2,),
        bos_token_id=1,
    )
    model = ModelConfig(
        model="test",
        served_name=served_name,
        source=ModelSource(kind="huggingface", path="/nowhere", files=()),
        architecture=architecture,
        dtype="float32",
        load_format="dummy",
        max_model_len=256,
        seed=0,
        skip_tokenizer_init=True,
    )
    return EngineConfig(
        model=model,
        cache=CacheConfig(block_size=16, num_blocks=64),
        scheduler=SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=64, enable_chunked_prefill=False, max_num_waiting=64
        ),
        device="cpu",
        attention_backend="torch",
        num_threads=1,
    )
