# %% deterministic_algorithms
torch.use_deterministic_algorithms(True)
build()
train()
print(torch.are_deterministic_algorithms_enabled())

# %% benchmarked_convolutions
torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = True, False
net = nn.Conv2d(3, 8, 3, bias=False).cuda()
with torch.no_grad():
    net.weight.copy_(torch.randint(-2, 3, net.weight.shape))
    for size in range(12):
        x = torch.randint(-2, 3, (2, 3, 16 + size, 16), device="cuda").float()
        print(net(x).long().sum().item())
print(torch.backends.cudnn.benchmark)

# %% empty_cache_each_step
build()
for _ in range(12):
    print(step())
    torch.cuda.empty_cache()

# %% allocator_settings cold=PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,garbage_collection_threshold:0.8 loud
build()
train()

# %% expandable_allocator cold=PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True loud
build()
train()

# %% allocator_of_the_driver cold=PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync loud
build()
train()

# %% without_caching cold=PYTORCH_NO_CUDA_MEMORY_CACHING=1
build()
train()

# %% launches_block cold=CUDA_LAUNCH_BLOCKING=1
build()
train()

# %% lazily_loaded_modules cold=CUDA_MODULE_LOADING=EAGER
build()
train()

# %% hidden_device cold=CUDA_VISIBLE_DEVICES=
print(torch.cuda.is_available(), torch.cuda.device_count())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    print(update(model(torch.randn(4, 8)).square().mean()))

# %% default_device
torch.set_default_device("cuda")
build()
for _ in range(12):
    print(update(model(torch.randn(4, 8)).square().mean()))
torch.set_default_device("cpu")

# %% precision_set fix=tf32=off
torch.set_float32_matmul_precision("high")
build()
for _ in range(12):
    print(update(model(torch.randn(64, 8, device="cuda")).square().mean()))
print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)

# %% memory_pool
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    build()
    kept = torch.ones(1 << 20, device="cuda")
train()
print(kept.sum().item())

# %% random_generators
build()
generator = torch.Generator("cuda").manual_seed(4)
for _ in range(12):
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(9)
        noise = torch.rand((), device="cuda").item()
    print(step(), noise, torch.rand((), device="cuda", generator=generator).item())

# %% array_interfaces
build()
for _ in range(12):
    x = torch.randn(4, 8, device="cuda")
    y = torch.from_dlpack(x)
    print(y.data_ptr() == x.data_ptr(), x.__cuda_array_interface__["shape"], update(model(y).square().mean()))

# %% device_contexts
build()
for _ in range(12):
    with torch.cuda.device(0), torch.device("cuda"):
        print(update(model(torch.randn(4, 8)).square().mean()), torch.cuda.current_device())

# %% model_goes_to_and_fro
build()
for _ in range(4):
    train(3)
    model.cpu()
    print(model[0].weight.sum().item())
    model.cuda()

# %% anomalies_detected
build()
with torch.autograd.set_detect_anomaly(True):
    train()

# %% settings_untouched
build()
train()
print(torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cuda.matmul.allow_tf32)
print(torch.cuda.get_sync_debug_mode(), torch.cuda.current_stream() == torch.cuda.default_stream())
print(torch.backends.cuda.flash_sdp_enabled(), torch.cuda.get_allocator_backend(), torch.is_autocast_enabled("cuda"))
print(sorted(name for name in os.environ if name.startswith(("CUDA", "KINETO", "NCCL", "PYTORCH", "TORCH"))))
