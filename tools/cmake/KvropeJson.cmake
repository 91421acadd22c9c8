# nlohmann/json: headers alone, for recorded calls (KVROPE_RECORD) and the runner; nothing of it is installed.
find_package(nlohmann_json 3.9 QUIET)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "kvrope needs nlohmann/json 3.9 or newer, which CMake does not find. Install it "
    "(nlohmann-json3-dev of Debian, nlohmann_json of conda-forge) or name its folder: "
    "-Dnlohmann_json_DIR=<folder with nlohmann_jsonConfig.cmake>, with pip in the environment variable CMAKE_ARGS.")
endif()
