"""open_model.py FILE...: opens model files with the safetensors package and looks at every tensor."""
import json
import sys

import numpy
import safetensors


def main(paths):
    if not paths:
        sys.exit("open_model: no file was given")
    for path in paths:
        with safetensors.safe_open(path, framework="numpy") as f:
            names = list(f.keys())
            if not names:
                sys.exit(f"{path}: holds no tensor")
            for name in names:
                tensor = f.get_tensor(name)
                if tensor.size == 0:
                    sys.exit(f"{path}: {name} is empty")
                if tensor.dtype.kind == "f" and not numpy.isfinite(tensor).all():
                    sys.exit(f"{path}: {name} holds a value that is not finite")
            metadata = f.metadata()
            if not metadata:
                sys.exit(f"{path}: has no metadata")
            texts = 0
            for value in metadata.values():
                try:
                    json.loads(value)
                    texts += 1
                except ValueError:
                    pass
            if texts == 0:
                sys.exit(f"{path}: no metadata value is JSON, so there is no graph")
        print(f"{path}: {len(names)} tensors")


main(sys.argv[1:])
