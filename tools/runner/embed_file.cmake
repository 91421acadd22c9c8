# cmake -DINPUT=... -DOUTPUT=... -P embed_file.cmake: the bytes of a file as numbers, to be included into an array.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "${bytes}\n")
