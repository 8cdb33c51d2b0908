"""Public questions and trust models, and their answers."""

from fedray.mechanisms.questions.question import Answer as Answer
from fedray.mechanisms.questions.question import Items as Items
from fedray.mechanisms.questions.question import Plan as Plan
from fedray.mechanisms.questions.question import Truth as Truth
from fedray.mechanisms.questions.registry import *
from fedray.mechanisms.questions.trust import Budget as Budget
from fedray.mechanisms.questions.trust import PairRefused as PairRefused
