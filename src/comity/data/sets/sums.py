"""Checksums of published files: md5 as published, sha256 of the subsets used in Comity's tests.

They are listed by dataset, because MNIST and Fashion-MNIST use the same file names. A file with
another checksum is used, with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping

SUMS: Mapping[str, Mapping[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        "mnist.npz": (  # and that of Keras
            "a7ca5941ed14a4e275a85c70d92dc1ec30216050a9a8efb4cd648939b6ce6b80 "
            "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
        ),
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        "fashion_mnist.npz": "d57d61800366e0acfc95fe4fb53f63d7c2d699fa00dc4c4ad7be62c4e8febfea",
    },
    "usps": {
        "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
        "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
        "usps.npz": "9aebc1647b218a4371d316d752ff1c8e791da6d00e1b41fac071f9dc41aa4725",
    },
    "mnist-m": {
        "mnist_m_subset.npz": "ed8542e07f5e13dd1163e03d8a41580d4d770cdb99029d01b19bbd4019f5a076"
    },
    "svhn": {
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        "svhn_first1083.npz": "7a0f28325b74e2766d04dee0737778ec2b8b3e64cf4a3ed99b8c129f6e41d1a5",
    },
    "cifar10": {
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "cifar10_subset.npz": "e5f5a3cbd9bd24f5d8cbe08abbadd1f785a3cbf00a52cb6d8e5514db505cf8c0",
    },
    "cifar100": {
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar100_subset.npz": "ae05953a8acd6c080141d62c86133704badb7c078445811d064a7eb6c2260cbe",
    },
    "femnist": {
        "femnist_writers.npz": "29a35294f9793b86f7059e7e63f402e1fccea89632e039034c207bb00ca5fd89"
    },
    "pacs": {
        "pacs64_subset.npz": "94449bf7a9fde90d8738789042970c6b319a7db857f62102a481a81d09195241"
    },
    "office-caltech": {
        "office10_amazon_webcam64.npz": (
            "476e23f0eb3c1ac7634360ced329cbc6b60996580debec833e3bfcc9eea5ee56"
        )
    },
    "har": {"uci_har.npz": "673133684eaa2cb30bb600f2a95542c610dd4ba071bd1eb2c87882767762bb9f"},
    "adult": {
        "adult.data": "5d7c39d7b8804f071cdd1f2a7c460872",
        "adult.test": "35238206dfdf7f1fe215bbb874adecdc",
        "adult_train.csv.gz": "73c4e40272dd7c57c018c34f8b10997956ff731e904bb093fd67832f4a62f02d",
        "adult_test.csv.gz": "340be5beff7b7f0cff0717dc37d48f1821cac3a499c8020ce31b8459fcf9b2cc",
    },
    "agnews": {
        "ag_news_train.csv.gz": "38adb1d397842d3bf50183e291d35ad891bb5fd9c43d36cd14237a0f721df356",
        "ag_news_test.csv.gz": "8051f6e7c76229adb4759f95fe61814f63108edcdfecd15cafaaec33868e90cf",
    },
}
