"""Fields of classes with slots, as the messages of msgspec are, read without a look-up of their names."""

from cpython.object cimport PyObject

cdef extern from "Python.h":
    int is_member "Py_IS_TYPE" (object instance, void *kind)
    void *MEMBER_TYPE "(&PyMemberDescr_Type)"

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    enum:
        T_OBJECT_EX


cdef inline Py_ssize_t offset_of(object kind, str name) except -1:
    """Byte offset of a slot in instances of exactly this class. Raises TypeError if the class has no such slot."""
    member = kind.__dict__[name]
    if not is_member(member, MEMBER_TYPE):
        raise TypeError(f"{name} is not a slot of {kind}")
    cdef PyMemberDef *found = (<PyMemberDescrObject *>member).d_member
    if found.type != T_OBJECT_EX:
        raise TypeError(f"{name} of {kind} is not an object")
    return found.offset


cdef inline object field(object owner, Py_ssize_t offset):
    """A field of an instance of the class that `offset_of` was called with. Raises AttributeError when it was
    deleted."""
    cdef PyObject *found = (<PyObject **>(<char *><PyObject *>owner + offset))[0]
    if found == NULL:
        raise AttributeError("a deleted field")
    return <object>found
