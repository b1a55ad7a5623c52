"""Segno for Conan 2: the released archive of the host's platform; nothing is compiled."""

import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import copy, get, load

import yaml


class Segno(ConanFile):
    name = "segno"
    description = "Language models inside other programs: a shared library with a stable C ABI"
    license = "MIT OR Apache-2.0"
    topics = ("llm", "gguf", "inference")
    package_type = "shared-library"
    # The compiler tells which import library a host links; packages of all compilers are one.
    settings = "os", "arch", "compiler"

    def set_version(self):
        self.version = yaml.safe_load(load(self, os.path.join(self.recipe_folder, "conandata.yml")))["version"]

    def package_id(self):
        del self.info.settings.compiler

    def _archive(self):
        return self.conan_data["archives"].get(f"{self.settings.os}-{self.settings.arch}", {"sha256": ""})

    def validate(self):
        if not self._archive()["sha256"]:
            raise ConanInvalidConfiguration(f"segno {self.version} has no archive for {self.settings.os} on {self.settings.arch}")

    def build(self):
        get(self, **self._archive(), strip_root=True)

    def package(self):
        copy(self, "*", src=os.path.join(self.build_folder, "share", "doc", "segno"), dst=os.path.join(self.package_folder, "licenses"))
        for folder in ("include", "bin", "lib"):
            copy(self, "*", src=os.path.join(self.build_folder, folder), dst=os.path.join(self.package_folder, folder),
                 excludes=("cmake/*", "pkgconfig/*", "libsegno.a"))

    def package_info(self):
        self.cpp_info.libs = ["segno"]
        self.cpp_info.set_property("cmake_file_name", "Segno")
        self.cpp_info.set_property("cmake_target_name", "Segno::segno")
        self.cpp_info.set_property("pkg_config_name", "segno")
