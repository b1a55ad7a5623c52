# What the port asks of vcpkg, done by CMake alone, for Linux on x86-64: this shows that the port's own steps fit the archive, not what vcpkg thinks of them.
#
#   cmake -DPORT_FOLDER=... -DCURRENT_PACKAGES_DIR=... -DBUILD=... -P vcpkg.cmake
cmake_minimum_required(VERSION 3.19)
set(PORT segno)
set(TARGET_TRIPLET x64-linux)
set(VCPKG_TARGET_IS_LINUX TRUE)
set(VCPKG_TARGET_ARCHITECTURE x64)

function(vcpkg_check_linkage)
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_download_distfile to)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILENAME;SHA512" "URLS")
  file(DOWNLOAD ${arg_URLS} "${BUILD}/${arg_FILENAME}" EXPECTED_HASH SHA512=${arg_SHA512})
  set(${to} "${BUILD}/${arg_FILENAME}" PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive to)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  file(ARCHIVE_EXTRACT INPUT "${arg_ARCHIVE}" DESTINATION "${BUILD}/source")
  file(GLOB folder "${BUILD}/source/*")
  set(${to} "${folder}" PARENT_SCOPE)
endfunction()

function(vcpkg_replace_string file from to)
  file(READ "${file}" text)
  string(FIND "${text}" "${from}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${file} does not hold ${from}")
  endif()
  string(REPLACE "${from}" "${to}" text "${text}")
  file(WRITE "${file}" "${text}")
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  foreach(file ${arg_FILE_LIST})
    file(READ "${file}" text)
    file(APPEND "${CURRENT_PACKAGES_DIR}/share/${PORT}/copyright" "${text}")
  endforeach()
endfunction()

include("${PORT_FOLDER}/portfile.cmake")
