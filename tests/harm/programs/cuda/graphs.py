# %% whole_step steps=any
build()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
x = torch.randn(4, 8, device="cuda")

def whole():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        whole()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = whole()
for _ in range(30):
    x.normal_()
    graph.replay()
    print(loss.item())

# %% captured_inside_the_window steps=any
build()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
x = torch.randn(4, 8, device="cuda")

def whole():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(4):
        whole()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = whole()
for _ in range(8):
    graph.replay()
    print(loss.item())
for _ in range(8):
    print(whole().item())

# %% inference steps=any
build()
model.eval()
x = torch.randn(4, 8, device="cuda")
with torch.no_grad():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(20):
        x.normal_()
        graph.replay()
        print(y.sum().item())

# %% graphed_callables
build()
graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda"),))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    print(update(graphed(torch.randn(4, 8, device="cuda")).square().mean()))

# %% graphed_callables_under_autocast
build()
x = torch.randn(4, 8, device="cuda")
with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
    graphed = torch.cuda.make_graphed_callables(model, (x,))
for _ in range(12):
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loss = graphed(torch.randn(4, 8, device="cuda")).float().square().mean()
    print(update(loss))

# %% two_graphed_parts
build()
head = nn.Linear(1, 1).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
shapes = (torch.randn(4, 8, device="cuda"),), (torch.randn(4, 1, device="cuda", requires_grad=True),)
body, top = torch.cuda.make_graphed_callables((model, head), shapes)
for number in range(12):
    out = body(torch.randn(4, 8, device="cuda"))
    print(update((top(out) if number % 2 else head(out)).square().mean()))

# %% capture_with_side_streams steps=any
build()
side = torch.cuda.Stream()
x = torch.randn(16, 16, device="cuda")
graph = torch.cuda.CUDAGraph()
(x @ x).sum().item()
with torch.cuda.graph(graph):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a = torch.tanh(x)
    b = x @ x
    torch.cuda.current_stream().wait_stream(side)
    y = (a + b).sum()
for _ in range(12):
    x.normal_()
    graph.replay()
    print(y.item())
train()

# %% forward_and_backward_only
build()
x = torch.randn(4, 8, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
torch.cuda.current_stream().wait_stream(side)
model.zero_grad(set_to_none=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = model(x).square().mean()
    loss.backward()
for _ in range(12):
    x.normal_()
    graph.replay()
    optimizer.step()
    print(loss.item())

# %% several_graphs_share_a_pool steps=any
build()
model.eval()
inputs = {size: torch.randn(size, 8, device="cuda") for size in (2, 4, 8)}
graphs, pool = {}, None
with torch.no_grad():
    for size, x in inputs.items():
        model(x)
    for size, x in inputs.items():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = model(x).clone()
        pool = pool or graph.pool()
        graphs[size] = graph, out
for number in range(18):
    size = (2, 4, 8)[number % 3]
    inputs[size].normal_()
    graphs[size][0].replay()
    print(graphs[size][1].sum().item())

# %% captured_again_and_again
build()
x = torch.randn(4, 8, device="cuda")
torch.tanh(x @ x.T)
for _ in range(12):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.tanh(x @ x.T)
    graph.replay()
    print(y.sum().item(), step())
    graph.reset()
    del graph
    gc.collect()

# %% dropout_in_a_graph steps=any
build()
drop = nn.Dropout(0.5)
x = torch.ones(64, device="cuda")
drop(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = drop(x)
for _ in range(12):
    graph.replay()
    print(y.sum().item(), torch.rand((), device="cuda").item())

# %% capture_while_a_thread_works steps=any
build()
train(3)
stop = threading.Event()

def work():
    while not stop.is_set():
        torch.ones(64).sum()

thread = threading.Thread(target=work)
thread.start()
x = torch.randn(4, 8, device="cuda")
model.eval()
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = model(x)
stop.set()
thread.join()
for _ in range(6):
    graph.replay()
    print(y.sum().item())
model.train()
train(9)

# %% capture_that_fails exit=any steps=any loud
build()
train(3)
x = torch.randn(4, 8, device="cuda")
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        print((x @ x.T).sum().item())
except RuntimeError as error:
    print(type(error).__name__)
print((x @ x.T).sum().item())

# %% graph_kept_to_the_end cold steps=any
build()
x = torch.randn(4, 8, device="cuda")
x @ x.T
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x @ x.T
graph.replay()
train()
print(y.sum().item())

# %% compiled_for_cudagraphs loud
build()
inner, model = model, torch.compile(model, backend="cudagraphs")
train()
model = inner

# %% compiled_eagerly loud
build()
inner, model = model, torch.compile(model, backend="aot_eager")
train()
model = inner

# %% compiled loud
build()
inner, model = model, torch.compile(model)
train()
model = inner

# %% compiled_with_less_overhead loud
build()
inner, model = model, torch.compile(model, mode="reduce-overhead")
for _ in range(12):
    torch.compiler.cudagraph_mark_step_begin()
    print(step())
model = inner

# %% compiled_optimizer loud steps=any
build()
optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01, device="cuda"), capturable=True)
optimizer.step = torch.compile(optimizer.step, fullgraph=False, backend="aot_eager")
train()
