"""What the compiled part was built from."""

cdef extern from *:
    """
    #ifndef RMQKIT_SOURCES
    #define RMQKIT_SOURCES ""
    #endif
    #if defined(__clang__)
    #define RMQKIT_COMPILER "clang " __clang_version__
    #elif defined(__GNUC__)
    #define RMQKIT_COMPILER "gcc " __VERSION__
    #else
    #define RMQKIT_COMPILER "a C compiler"
    #endif
    """
    const char *RMQKIT_SOURCES
    const char *RMQKIT_COMPILER

SOURCES = RMQKIT_SOURCES.decode()
COMPILER = RMQKIT_COMPILER.decode()
