"""Official facts about each named dataset: sizes, splits, addresses, checksums, and layout on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Remote:
    """A file to download; ``checksum`` is its MD5 or SHA-256, ``into`` a sub-folder of the data folder.

    ``makes`` is there once the file has been downloaded (and unpacked, if it is an archive).
    """

    url: str
    checksum: str
    into: str
    makes: str

    @property
    def filename(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def is_archive(self) -> bool:
        return self.filename.endswith((".tar.gz", ".tgz", ".tar", ".zip"))


@dataclass(frozen=True)
class Official:
    """A named dataset; ``val`` is None where no validation images are set apart."""

    name: str
    family: str
    classes: int
    train: int
    val: int | None
    test: int
    folders: tuple[str, ...]
    layout: str
    address: str
    files: tuple[Remote, ...] = ()
    note: str = "no official validation images: hold some out of the training images"

    @property
    def side(self) -> float | None:
        """Side of the images in pixels, where all have the same size."""
        return {"cifar": 32.0, "svhn": 32.0, "tiny-imagenet": 64.0}.get(self.family)


_HOLD_OUT = "hold validation images out of the training images"


def _cifar(classes: int, checksum: str, folder: str, binary: str) -> Official:
    address = f"https://www.cs.toronto.edu/~kriz/cifar-{classes}-python.tar.gz"
    names = (folder, binary, f"cifar{classes}", f"cifar-{classes}", f"CIFAR{classes}")
    layout = f"{folder}/ (as unpacked), {binary}/, or class folders train/CLASS and test/CLASS"
    files = (Remote(address, checksum, "", folder),)
    return Official(f"cifar{classes}", "cifar", classes, 50_000, None, 10_000, names, layout, address, files)


def _svhn() -> Official:
    address = "http://ufldl.stanford.edu/housenumbers/"
    files = (
        Remote(f"{address}train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "svhn", "svhn/train_32x32.mat"),
        Remote(f"{address}test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "svhn", "svhn/test_32x32.mat"),
    )
    layout = "train_32x32.mat and test_32x32.mat"
    return Official("svhn", "svhn", 10, 73_257, None, 26_032, ("svhn", "SVHN"), layout, address, files)


def _flowers(name: str, train: int, val: int | None, note: str) -> Official:
    address = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
    home = "flowers-102"
    files = (
        Remote(f"{address}102flowers.tgz", "52808999861908f626f3c1f4e79d11fa", home, f"{home}/jpg"),
        Remote(f"{address}imagelabels.mat", "e0620be6f572b9609742df49c70aed4d", home, f"{home}/imagelabels.mat"),
        Remote(f"{address}setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c", home, f"{home}/setid.mat"),
    )
    names = (home, "flowers102", "102flowers", "oxford-102-flowers")
    layout = "jpg/image_00001.jpg ... with setid.mat and imagelabels.mat, or class folders train/, val/ and test/"
    return Official(name, "flowers", 102, train, val, 6_149, names, layout, address, files, note)


def _imagenet(name: str, classes: int, train: int, test: int, tested: str) -> Official:
    names = (name, "imagenet1k", "imagenet-1k", "imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC")
    layout = (
        "train/WNID/*.JPEG and val/WNID/*.JPEG, or Kaggle's ILSVRC/Data/CLS-LOC/{train,val} with LOC_val_solution.csv"
    )
    if name == "imagenet100":
        layout += " (the whole of ImageNet will do), and --class-list FILE with a WordNet id per line"
    address = "https://image-net.org/download (needs an account there)"
    note = f"tested on {tested}; {_HOLD_OUT}"
    return Official(name, "imagenet", classes, train, None, test, names, layout, address, (), note)


def _tiny() -> Official:
    address, folder = "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet-200"
    files = (Remote(address, "90528d7ca1a48142e341f4ef8d21d0de", "", folder),)
    layout = f"{folder}/train/WNID/images/*.JPEG, {folder}/val/images/*.JPEG and {folder}/val/val_annotations.txt"
    names = (folder, "tiny-imagenet", "tiny_imagenet")
    note = f"its 10,000 validation images are the test images; {_HOLD_OUT}"
    return Official("tiny-imagenet", "imagenet", 200, 100_000, None, 10_000, names, layout, address, files, note)


def _fastai(name: str, train: int, test: int, checksum: str) -> Official:
    address = f"https://s3.amazonaws.com/fast-ai-imageclas/{name}2-320.tgz"
    names = (name, f"{name}2", f"{name}2-320", f"{name}2-160")
    layout = f"{name}2-320/ (or {name}2/, {name}2-160/) with train/WNID/*.JPEG and val/WNID/*.JPEG"
    files = (Remote(address, checksum, "", f"{name}2-320"),)
    note = f"its val folder is the test set; {_HOLD_OUT}"
    return Official(name, "imagenet", 10, train, None, test, names, layout, address, files, note)


_DOMAINS = {
    "clipart": (33_525, 14_604),
    "infograph": (36_023, 15_582),
    "painting": (50_416, 21_850),
    "quickdraw": (120_750, 51_750),
    "real": (120_906, 52_041),
    "sketch": (48_212, 20_916),
}
"""Training and test images of DomainNet."""

_SHA256 = """
f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d  clipart.zip
affdadf5f95a7583e6b98030a3d35007e2613ee4dd942393c5a705ec2b429312  clipart_train.txt
62c8e36aaba1c41ad9e249099739707220a44c08f167b37ef420f34a31628a6b  clipart_test.txt
891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa  infograph.zip
36b44cbd41a2915e0dc73b4f4be8862a6f3c220f93c8d63fb2439beeae3aefda  infograph_train.txt
413cfa54ac92e7e6b242f4f09fbd9c8ace85c4deaf3cb6c81ff6b68264460136  infograph_test.txt
fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015  painting.zip
f1da38d50a702fddf1329f85bc607d7a2abcae7e6aec75e1fd49cc1bd340d47b  painting_train.txt
11472b13b5188e09f06918b12eebb660588c97a20e43e268d9b02e3e37eb8f97  painting_test.txt
9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84  quickdraw.zip
3a5edd3bc215772010eebc87f158707703dd7e48091d13b816af81326a9d1c0f  quickdraw_train.txt
2a00a60650a453c65c356da748fec54084a197272137c440e7d52d08947357bf  quickdraw_test.txt
d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63  real.zip
19d483256d24aef19e581b65eda8333fd918aef3eb733fe499ff384120e3a289  real_train.txt
2b3f75bcde309aeb5931292084b2162e936b5f189e3bb1ad716f0f74c460864c  real_test.txt
23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc  sketch.zip
72f4bc6afa5702a1ccba800d0053c1427de87439dfaf246dbc9a2e71abfec54f  sketch_train.txt
3fb48fca18c507c4321f007c3f62b308ec232ff6928cbfe2af64e76ec366e840  sketch_test.txt
"""


def _domainnet(domain: str) -> Official:
    base, home, full = "http://csr.bu.edu/ftp/visda/2019/multi-source/", "domainnet", f"domainnet-{domain}"
    train, test = _DOMAINS[domain]
    cleaned = domain in ("clipart", "painting")
    address = f"{base}{'groundtruth/' if cleaned else ''}{domain}.zip"
    checksums = {name: digest for digest, name in map(str.split, _SHA256.split("\n")[1:-1])}
    lists = (f"{domain}_train.txt", f"{domain}_test.txt")
    files = (
        Remote(address, checksums[f"{domain}.zip"], home, f"{home}/{domain}"),
        *(Remote(f"{base}domainnet/txt/{name}", checksums[name], home, f"{home}/{name}") for name in lists),
    )
    layout = f"{domain}/CLASS/*, {lists[0]} and {lists[1]}" + (" (the cleaned version)" * cleaned)
    names = (home, "DomainNet", "domain_net")
    return Official(full, "domainnet", 345, train, None, test, names, layout, address, files)


_ALL = (
    _cifar(10, "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py", "cifar-10-batches-bin"),
    _cifar(100, "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python", "cifar-100-binary"),
    _svhn(),
    _flowers(
        "flowers102",
        2_040,
        None,
        "the validation images are part of the training images: tune on flowers102-split (1,020 / 1,020), then train on"
        " these 2,040 and report the last epoch",
    ),
    _flowers("flowers102-split", 1_020, 1_020, "the split to tune on; flowers102 trains on both halves"),
    _imagenet("imagenet1k", 1_000, 1_281_167, 50_000, "its 50,000 validation images (its test labels are not public)"),
    _imagenet("imagenet100", 100, 126_689, 5_000, "the ImageNet validation images of its classes"),
    _tiny(),
    _fastai("imagenette", 9_469, 3_925, "3df6f0d01a2c9592104656642f5e78a3"),
    _fastai("imagewoof", 9_025, 3_929, "4e4905ed7643120daaf9bf3b2ef7f3a7e8396d9bdaf254a38c6f01f618b4973d"),
    *map(_domainnet, _DOMAINS),
)

OFFICIAL: dict[str, Official] = {official.name: official for official in _ALL}
"""Every named dataset by the name it has on the command line."""
