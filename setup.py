# SPDX-License-Identifier: Apache-2.0
from setuptools import setup

setup(
    cffi_modules=["ioutil_ext/build_ioutil.py:ffibuilder"],
    # cffi's module uses the stable interface: one wheel is for Python 3.11 and all later ones.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
