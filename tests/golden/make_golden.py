"""Golden values from PyTorch for every op, the losses and optimisers, and the study's whole network.

usage: python3 tests/golden/make_golden.py OUT_DIR      (needs torch and numpy; made with torch 1.13.1)

Writes OUT_DIR/ops.safetensors and OUT_DIR/network.safetensors in qnn's layouts (NHWC, weights [OC][KH][KW][IC]). Everything is computed in
double precision and stored as float32, so that the figures a test prints are qnn's own error.
Large inputs of the network case are not stored: both sides draw them from the same integer hash (see `draw`).
"""
import json
import struct
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
out_dir = sys.argv[1]


def write(path, tensors):
    """A safetensors file by hand: eight bytes of header length, JSON, data."""
    header, blobs, at = {}, [], 0
    for name, a in tensors.items():
        a = np.ascontiguousarray(a, dtype=np.int32 if np.issubdtype(a.dtype, np.integer) else np.float32)
        header[name] = {"dtype": "I32" if a.dtype == np.int32 else "F32", "shape": list(a.shape),
                        "data_offsets": [at, at + a.nbytes]}
        blobs.append(a.tobytes())
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def draw(n, stream, scale):
    """n values in [-scale, scale), a pure function of (stream, index): the C test has the same three lines."""
    i = np.arange(n, dtype=np.uint64) + np.uint64(stream) * np.uint64(1000003)
    h = (i * np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    h ^= h >> np.uint64(29)
    h = (h * np.uint64(0xBF58476D1CE4E5B9)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    unit = (h >> np.uint64(40)).astype(np.float64) / 2.0**24
    return ((2.0 * unit - 1.0) * scale).astype(np.float32)


def nhwc(t):
    return t.detach().permute(0, 2, 3, 1).numpy() if t.dim() == 4 else t.detach().numpy()


def image(n, h, w, c):
    return torch.randn(n, c, h, w).float().double().requires_grad_()


T = {}


def case(name, fn, xs, params=(), layout=()):
    """y = fn(*xs): stores inputs, parameters, output, a random dy and every gradient."""
    y = fn(*xs)
    dy = torch.randn_like(y).float().double()
    grads = torch.autograd.grad(y, list(xs) + [p for _, p in params], dy)
    T[name + "/y"], T[name + "/dy"] = nhwc(y), nhwc(dy)
    for i, x in enumerate(xs):
        T[f"{name}/x{i}"], T[f"{name}/dx{i}"] = nhwc(x), nhwc(grads[i])
    for (suffix, p), g in zip(params, grads[len(xs):]):
        T[f"{name}/{suffix}"], T[f"{name}/d{suffix}"] = nhwc(p), nhwc(g)


def conv(name, n, h, w, ic, oc, k, stride=1, dilation=1, groups=1, pads=(0, 0, 0, 0), bias=True):
    """pads: top, left, bottom, right."""
    m = nn.Conv2d(ic, oc, k, stride, 0, dilation, groups, bias)
    for p in m.parameters():
        p.data = p.data.float().double()
    params = [("weight", m.weight)] + ([("bias", m.bias)] if bias else [])
    case(name, lambda x: m(F.pad(x, (pads[1], pads[3], pads[0], pads[2]))), [image(n, h, w, ic)], params)


conv("conv2d_3x3", 2, 9, 7, 3, 8, 3, pads=(1, 1, 1, 1))
conv("conv2d_wide", 1, 8, 8, 32, 40, 3, pads=(1, 1, 1, 1))
conv("conv2d_stride_dilation_groups", 2, 11, 13, 4, 6, (3, 2), stride=(2, 1), dilation=(2, 3), groups=2, pads=(1, 2, 3, 0))
conv("conv2d_depthwise", 2, 8, 8, 16, 16, 3, groups=16, pads=(1, 1, 1, 1))
conv("conv2d_1x1_no_bias", 2, 5, 5, 7, 9, 1, bias=False)
conv("conv2d_stride_3", 1, 10, 10, 5, 4, 3, stride=3, pads=(0, 1, 2, 1))

for name, bias in (("linear", True), ("linear_no_bias", False)):
    m = nn.Linear(37, 19, bias)
    for p in m.parameters():
        p.data = p.data.float().double()
    case(name, m, [torch.randn(5, 37).float().double().requires_grad_()],
         [("weight", m.weight)] + ([("bias", m.bias)] if bias else []))

for name, training in (("batchnorm2d_train", True), ("batchnorm2d_eval", False)):
    m = nn.BatchNorm2d(6, eps=1e-5, momentum=0.1)
    m.weight.data.uniform_(0.5, 1.5)
    m.bias.data.uniform_(-1, 1)
    m.running_mean.uniform_(-0.5, 0.5)
    m.running_var.uniform_(0.5, 2)
    for t in (m.weight.data, m.bias.data, m.running_mean, m.running_var):
        t.copy_(t.float().double())
    T[name + "/running_mean"], T[name + "/running_var"] = m.running_mean.numpy().copy(), m.running_var.numpy().copy()
    m.train(training)
    case(name, m, [image(4, 5, 3, 6)], [("weight", m.weight), ("bias", m.bias)])
    T[name + "/running_mean_after"], T[name + "/running_var_after"] = m.running_mean.numpy(), m.running_var.numpy()

case("relu", F.relu, [image(2, 4, 5, 3)])
case("relu6", F.relu6, [(image(2, 4, 5, 3).detach() * 6).requires_grad_()])
case("clip", lambda x: F.hardtanh(x, -0.5, 0.75), [image(2, 4, 5, 3)])
case("maxpool2d_2", lambda x: F.max_pool2d(x, 2), [image(2, 8, 6, 33)])
case("maxpool2d_overlap", lambda x: F.max_pool2d(x, 3, 2, 1), [image(2, 9, 8, 5)])
case("avgpool2d_2", lambda x: F.avg_pool2d(x, 2), [image(2, 8, 6, 5)])
case("avgpool2d_pad", lambda x: F.avg_pool2d(x, 3, 2, 1), [image(2, 9, 8, 5)])
case("avgpool2d_exclude_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [image(2, 9, 8, 5)])
case("global_avgpool", lambda x: F.adaptive_avg_pool2d(x, 1), [image(3, 5, 7, 6)])
case("add", lambda a, b: a + b, [image(2, 3, 4, 5), image(2, 3, 4, 5)])
case("concat", lambda a, b, c: torch.cat([a, b, c], 1), [image(2, 3, 4, 5), image(2, 3, 4, 2), image(2, 3, 4, 7)])
case("flatten", lambda x: x.permute(0, 2, 3, 1).flatten(1), [image(2, 3, 4, 5)])
case("softmax", lambda x: F.softmax(x, -1), [(torch.randn(5, 11) * 3).float().double().requires_grad_()])
case("dropout_p0", lambda x: F.dropout(x, 0.0), [image(2, 3, 4, 5)])

# loss
x = (torch.randn(7, 13) * 4).float().double().requires_grad_()
labels = torch.randint(0, 13, (7,))
loss = F.cross_entropy(x, labels)
loss.backward()
T["loss/x"], T["loss/labels"], T["loss/loss"], T["loss/dx"] = x.detach().numpy(), labels.numpy(), loss.detach().numpy().reshape(1), x.grad.numpy()

# optimisers: a linear layer, ten steps on fixed batches
OPTIMISERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adam_decay": lambda p: torch.optim.Adam(p, lr=3e-3, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.05),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
}
bx = torch.randn(10, 8, 12).float().double()
by = torch.randint(0, 5, (10, 8))
T["optim/x"], T["optim/labels"] = bx.numpy(), by.numpy()
w0, b0 = torch.randn(5, 12).float().double(), torch.randn(5).float().double()
T["optim/weight"], T["optim/bias"] = w0.numpy(), b0.numpy()
for name, make in OPTIMISERS.items():
    for clip in (0.0, 0.25):
        m = nn.Linear(12, 5)
        m.weight.data, m.bias.data = w0.clone(), b0.clone()
        opt = make(m.parameters())
        for i in range(10):
            opt.zero_grad()
            F.cross_entropy(m(bx[i]), by[i]).backward()
            if clip:
                nn.utils.clip_grad_norm_(m.parameters(), clip)
            opt.step()
        tag = f"optim/{name}{'_clip' if clip else ''}"
        T[tag + "/weight"], T[tag + "/bias"] = m.weight.detach().numpy(), m.bias.detach().numpy()

# ReduceLROnPlateau on a metric that stalls
metric = [40, 39, 39, 39.001, 39, 39, 38.999, 39, 39, 39, 39, 30, 31, 31, 31, 31, 31, 31, 31, 31]
rates = []
opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
sch = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.1, patience=3)
for v in metric:
    sch.step(v)
    rates.append(opt.param_groups[0]["lr"])
T["plateau/metric"], T["plateau/lr"] = np.array(metric), np.array(rates)
write(out_dir + "/ops.safetensors", T)

# the study's network: 128 x 128, batch 4, ten Adam steps with clipping
LAYERS = [("conv1", 32, 3, 3), ("conv2", 64, 3, 32), ("conv3", 128, 3, 64)]
N, CLASSES, SAMPLES = 4, 101, 400


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        stream = 1
        self.names = []
        for name, oc, k, ic in LAYERS + [("fc1", 256, 0, 128 * 16 * 16), ("fc2", CLASSES, 0, 256)]:
            fan_in = ic * (k * k if k else 1)
            m = nn.Conv2d(ic, oc, k, padding=1) if k else nn.Linear(ic, oc)
            w = torch.from_numpy(draw(oc * fan_in, stream, fan_in**-0.5)).double()
            w = w.view(oc, k, k, ic).permute(0, 3, 1, 2).contiguous() if k else w.view(oc, ic)
            m.weight.data, m.bias.data = w, torch.from_numpy(draw(oc, stream + 1, fan_in**-0.5)).double()
            setattr(self, name, m)
            self.names.append(name)
            stream += 2

    def forward(self, x):
        for name in ("conv1", "conv2", "conv3"):
            x = F.max_pool2d(F.relu(getattr(self, name)(x)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)  # NHWC order, as qnn flattens
        return self.fc2(F.relu(self.fc1(x)))


def sample(a):
    """At most SAMPLES elements, evenly spread over the flat array."""
    flat = np.ascontiguousarray(a).reshape(-1)
    step = max(1, len(flat) // SAMPLES)
    return flat[::step][:SAMPLES].copy()  # the gradients behind it are overwritten by the next step


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
W = {"labels": np.zeros((10, N), dtype=np.int32), "loss": np.zeros(10)}
for step in range(10):
    x = torch.from_numpy(draw(N * 128 * 128 * 3, 100 + step, 2.0)).double().view(N, 128, 128, 3).permute(0, 3, 1, 2)
    labels = (torch.arange(N) * 37 + step * 11) % CLASSES
    opt.zero_grad()
    logits = net(x)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    W["labels"][step], W["loss"][step] = labels.numpy(), loss.item()
    if step == 0:
        W["logits"] = logits.detach().numpy()
        for name in net.names:
            m = getattr(net, name)
            W[f"grad/{name}.weight"] = sample(nhwc(m.weight.grad))
            W[f"grad/{name}.bias"] = sample(m.bias.grad.numpy())
    W[f"norm/{step}"] = nn.utils.clip_grad_norm_(net.parameters(), 1.0).detach().numpy().reshape(1)
    opt.step()
for name in net.names:
    m = getattr(net, name)
    W[f"after/{name}.weight"] = sample(nhwc(m.weight))
    W[f"after/{name}.bias"] = sample(m.bias.detach().numpy())
write(out_dir + "/network.safetensors", W)
