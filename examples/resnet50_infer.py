"""ResNet-50 inference on synthetic 224 px images that are already on the device, in strict fp32."""

import argparse

import torch
import torchvision


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torchvision.models.resnet50(weights=None).to(device).eval()
    images = torch.randn(arguments.batch, 3, 224, 224, device=device)
    with torch.inference_mode():
        for _ in range(arguments.steps):
            scores = model(images)
            scores.argmax(dim=1).cpu()


if __name__ == "__main__":
    main()
